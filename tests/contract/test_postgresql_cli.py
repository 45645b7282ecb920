"""The command line on a PostgreSQL store: every command works by its URL, and gives what SQLite gives."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from cli import TIMEOUT_S, VIEWS, example, ok, refused, replay, rows, start, verified
from cli_recordings import generated
from log_scenarios import every_kind
from postgresql import LOCKED_PASSWORD, LOCKED_USER, server

from projections.engine import Store
from projections.schema import HEAD
from sickbay.timestamps import format_time_ms

UNTIL = "2099-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def stores(folder):
    """The same recording in both: PostgreSQL by three workers, SQLite by this process alone."""
    recording = generated(folder / "load.jsonl.zst", nodes=6, seconds=30, rate=60, fault_rate="0.9")
    url, path = server().empty(), folder / "load.db"
    ours = replay(recording, "--workers", "3", db=url)
    theirs = replay(recording, "--workers", "1", db=path)
    assert theirs == ours
    assert 0 < ours["episodes"]
    yield url, path
    server().drop(url)


def test_a_replay_by_several_workers_gives_the_rows_of_sqlite(stores):
    """Equal logs, equal rows, and each store proves itself."""
    url, path = stores
    assert verified(path) == verified(url)


@pytest.mark.parametrize("view", VIEWS)
def test_every_audit_view_answers_alike(stores, view):
    """In the same words and the same order, now and at an instant."""
    url, path = stores
    assert rows("audit", view, db=path) == rows("audit", view, db=url)
    with Store.open(path, read_only=True) as store:
        newest_ms = max(position.newest_ms for position in store.positions().values())
    before = ("--as-of", format_time_ms(newest_ms - 5_000))
    assert rows("audit", view, *before, db=path) == rows("audit", view, *before, db=url)


def test_questions_about_an_episode_answer_alike(stores):
    """Episodes, their explanation, and the timeline of the device."""
    url, path = stores
    episodes = rows("episodes", db=path)
    assert episodes == rows("episodes", db=url)
    episode = episodes[0]
    for question in (("explain", episode["episode_id"]), ("timeline", episode["device_id"])):
        assert rows(*question, db=path) == rows(*question, db=url)


def test_a_replay_that_is_run_again_changes_nothing(folder):
    """It goes on where it stopped: at the end."""
    url = server().empty()
    replay(example("one-card"), db=url)
    before = verified(url)
    replay(example("one-card"), db=url)
    assert before == verified(url)
    server().drop(url)


def test_requests_rebuild_and_migrate_work_by_url(folder):
    """Hold, release, rebuild, migrate: the rows are those of SQLite after the same commands."""
    url, path = server().empty(), folder / "asked.db"
    assert f"schema none -> {HEAD}" in ok("migrate", "--db", url).out
    assert f"schema {HEAD}, nothing to do" in ok("migrate", "--db", url).out
    for db in (url, path):
        replay(example("flapping"), db=db)
        device = rows("audit", "inventory", db=db)[0]["device_id"]
        at = ("--at", "2098-01-01T00:00:00Z", "--actor", "ana", "--reason", "fan noise")
        ok("hold", device, "--until", UNTIL, *at, "--db", db)
        ok(
            "release",
            "last",
            "--at",
            "2098-01-02T00:00:00Z",
            "--actor",
            "ana",
            "--reason",
            "replaced",
            "--db",
            db,
        )
        ok("rebuild", "--db", db)
    assert verified(path) == verified(url)
    server().drop(url)


def test_a_password_is_nowhere_in_what_is_printed(folder):
    """Not in summaries, not in errors, not in the log of a verbose run, not in what a failing worker says."""
    url = server().migrated()
    server().execute(
        f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{LOCKED_USER}') THEN"
        f" CREATE ROLE {LOCKED_USER} LOGIN PASSWORD '{LOCKED_PASSWORD}'; END IF; END $$",
        f"ALTER ROLE {LOCKED_USER} SUPERUSER",
    )
    secret = (
        sa.make_url(url)
        .set(username=LOCKED_USER, password=LOCKED_PASSWORD)
        .render_as_string(hide_password=False)
    )
    done = [
        ok("--verbose", "replay", example("one-card"), "--workers", "2", "--db", secret),
        ok("migrate", "--db", secret),
        ok("audit", "devices", "--db", secret),
    ]
    told = [done.out + done.err for done in done]
    told.append(refused("replay", example("flapping"), "--workers", "2", "--db", secret, code=5))
    told.append(refused("verify", "--db", secret.replace(LOCKED_PASSWORD, "wr0ng"), code=5))
    for text in told:
        assert LOCKED_PASSWORD not in text
        assert "wr0ng" not in text
    assert f"{LOCKED_USER}:***@" in told[0]
    server().execute(f"ALTER ROLE {LOCKED_USER} NOSUPERUSER")
    server().drop(url)


def test_a_server_of_another_locale_gives_equal_rows(tmp_path):
    """Names of every script sort and compare byte by byte, whatever the database was created with (S13)."""
    url = server().empty("TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR' LOCALE 'C.UTF-8'")
    log = every_kind().records
    with (
        Store.open(url, create=True, partitions=4) as ours,
        Store.open(tmp_path / "same.db", create=True, partitions=4) as theirs,
    ):
        ours.write(log)
        theirs.write(log)
        assert theirs.digests() == ours.digests()
    server().drop(url)


def test_a_database_that_is_not_there_is_refused_in_one_line():
    """Exit code 5, the place and the remedy."""
    told = refused("audit", "devices", "--db", server().url("nowhere"), code=5)
    assert "create it with `createdb`" in told


def test_roles_are_given_on_demand():
    """`sickbay migrate --roles` names them; a file has none."""
    url = server().empty()
    assert "sickbay_projector" in ok("migrate", "--roles", "--db", url).out
    assert "a file has no roles" in refused("migrate", "--roles", "--db", "x.db", code=5)
    server().drop(url)


def test_two_replays_at_once_come_to_one_log(folder, stores):
    """Each with workers of its own, into one new database: every batch is there once, whoever wrote it."""
    recording, url = folder / "load.jsonl.zst", server().empty()
    runs = [start("replay", recording, "--workers", "2", "--quiet", "--db", url) for _ in range(2)]
    for run in runs:
        out, err = run.communicate(timeout=TIMEOUT_S)
        assert (0, b"") == (run.returncode, err), out + err
    assert verified(stores[1]) == verified(url)
    server().drop(url)
