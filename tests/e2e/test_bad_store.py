"""A database that cannot be used: exit code 5, the place and the remedy on one line, and no event of anybody touched."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli import example, log_of, ok, refused, replay, rows, run_alone, verified
from cli_recordings import generated

from projections.schema import HEAD

ONE_CARD = example("one-card")
READERS = (
    ("episodes",),
    ("timeline", "dra:x"),
    ("explain", "last"),
    ("audit", "devices"),
    ("verify",),
    ("rebuild",),
    ("hold", "dra:x", "--until", "2099-01-01T00:00:00Z", "--reason", "x"),
    ("release", "last", "--reason", "x"),
)
USERS = (*READERS, ("replay", ONE_CARD))


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_a_missing_store_is_named_with_what_makes_one(tmp_path, command):
    """A question makes no store."""
    assert "there is no store; `sickbay replay` or `sickbay migrate` makes one" in refused(
        *command, "--db", tmp_path / "none.db", code=5
    )
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("command", USERS, ids=lambda command: command[0])
def test_a_file_that_is_no_database_is_left_alone(tmp_path, command):
    """A text file is not turned into a store."""
    place = tmp_path / "notes.txt"
    place.write_text("buy milk\n" * 1000)
    assert "is not a SQLite database; give another path" in refused(*command, "--db", place, code=5)
    assert "buy milk\n" * 1000 == place.read_text()


@pytest.mark.parametrize("command", [*USERS, ("migrate",)], ids=lambda command: command[0])
def test_a_database_of_somebody_else_is_left_alone(tmp_path, command):
    """Tables that are not ours are named, and none is added."""
    place = tmp_path / "theirs.db"
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE invoices (id)")
    connection.close()
    assert "holds other tables (invoices)" in refused(*command, "--db", place, code=5)
    with sqlite3.connect(place) as connection:
        assert [("invoices",)] == connection.execute("SELECT name FROM sqlite_master").fetchall()
    connection.close()


@pytest.mark.parametrize("command", [*USERS, ("migrate",)], ids=lambda command: command[0])
def test_a_newer_schema_is_refused(copy_of, command):
    """A store of a newer build is not touched by this one."""
    place = copy_of("one-card")
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = log_of(place)
    told = refused(*command, "--db", place, code=5)
    assert "schema revision 9999" in told
    assert "use the build that wrote it" in told
    assert before == log_of(place)


@pytest.mark.parametrize(
    "arguments",
    [
        (example("node-level"),),
        (ONE_CARD, "--until", "2026-07-01T09:00:00Z"),
        (ONE_CARD, "--node", "gpu-a1"),
        (ONE_CARD, "--policy", example("x").replace("x.jsonl.zst", "policies/laxer.yaml")),
    ],
)
def test_a_store_of_another_recording_is_refused(copy_of, arguments):
    """Another recording, another part of it, or another policy is another log."""
    place = copy_of("one-card")
    before = verified(place)
    assert "give another database" in refused("replay", *arguments, "--db", place, code=5)
    assert before == verified(place)


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("", "is not a place for a store"),
        (":memory:", "is not a place for a store"),
        ("mysql://ann:secret@db/x", "this build writes SQLite"),
        (
            "nowhere/store.db",
            "cannot be created (No such file or directory); check that its directory exists",
        ),
        ("file/store.db", "cannot be created (Not a directory); check that its directory exists"),
        ("folder", "cannot be opened; check that its directory exists"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(tmp_path, place, problem):
    """The remedy is in the line; a password is not."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    told = refused("replay", ONE_CARD, "--db", place, code=5, cwd=tmp_path)
    assert problem in told
    assert "secret" not in told


def test_a_store_is_for_its_owner_alone(stores):
    """What a cluster said is nobody else's business (mode 0600)."""
    assert 0o600 == stat.S_IMODE(stores["one-card"].stat().st_mode)


def limited(size):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.mark.parametrize(("size", "workers"), [(0, 1), (100_000, 1), (300_000, 2), (400_000, 1)])
def test_a_full_disk_loses_nothing_that_was_written(stores, tmp_path, size, workers):
    """Nothing of a batch is there, or all of it; with room again, the same replay ends as if nothing had been."""
    place = tmp_path / "store.db"
    told = refused("replay", ONE_CARD, "--workers", workers, "--db", place, code=5, preexec_fn=limited(size))
    assert "check the disk" in told
    replay(ONE_CARD, db=place)
    assert verified(stores["one-card"]) == verified(place)


@pytest.mark.parametrize(
    "question", [("episodes",), ("verify", "-o", "json"), ("audit", "devices", "-o", "csv")], ids=" ".join
)
def test_an_answer_that_cannot_be_written_is_a_failure(stores, question):
    """A full device behind standard output is exit code 1, and said."""
    with Path("/dev/full").open("wb") as full:
        done = run_alone(*question, "--db", stores["one-card"], stdout=full)
    assert (1, 1) == (done.code, len(done.err.splitlines()))
    assert "No space left on device" in done.err


def test_a_reader_that_leaves_early_is_no_failure(stores):
    """`sickbay … | head` ends well and says nothing."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", closefd=True) as pipe:
        done = run_alone("audit", "transitions", "--db", stores["node-level"], "-o", "json", stdout=pipe)
    assert (0, "") == (done.code, done.err)


# --- verify ---


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "UPDATE event_log SET data = CAST(replace(CAST(data AS TEXT), 'Unhealthy', 'Healthy') AS BLOB) WHERE kind = 'device_health_observed'",
            "hash chain breaks",
        ),
        ("DELETE FROM event_log WHERE log_offset = 20", "hash chain breaks"),
        ("DELETE FROM event_log WHERE rowid = (SELECT max(rowid) FROM event_log)", "tail was cut"),
        (
            "UPDATE event_log SET actor = 'mallory' WHERE log_offset = 5",
            "actor do not say what the event says",
        ),
        ("UPDATE episode SET outcome = 'absorbed'", "episode differ from a replay of the log"),
        ("UPDATE device_current SET phase = 'quarantined'", "device_current differ from a replay of the log"),
        ("DELETE FROM transition", "transition differ from a replay of the log"),
    ],
)
def test_a_store_that_was_changed_by_hand_does_not_verify(copy_of, statement, problem):
    """Exit code 6, with the place that disagrees."""
    place = copy_of("one-card")
    with sqlite3.connect(place) as connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            connection.execute(f'DROP TRIGGER "{name}"')
        assert 0 < connection.execute(statement).rowcount
    connection.close()
    assert problem in refused("verify", "--db", place, code=6)


def test_an_event_of_a_newer_build_in_a_store_is_said(copy_of):
    """The log is readable by its owner's build; this one says with exit code 4 what it cannot read."""
    from projections.engine import Store
    from projections.records import LogRecord
    from sickbay.codec import decode_envelope

    place = copy_of("one-card")
    with Store.open(place) as store:
        position = store.positions()[0]
        event = json.loads(log_of(place)[5]) | {
            "event_id": "00000000-0000-5000-8000-000000000000",
            "kind": "device_teleported",
            "stream_id": "partition/0",
        }
        data = json.dumps(event, separators=(",", ":")).encode()
        store.write([LogRecord(0, position.next_offset, decode_envelope(data), data)])
    assert "event kind 'device_teleported' is unknown to this build" in refused(
        "verify", "--db", place, code=4
    )
    assert 1 == len(rows("episodes", db=place))


# --- migrate, rebuild ---


def test_two_that_migrate_at_once_do_it_once(tmp_path):
    """The second waits and finds it done (faults M3)."""
    place = tmp_path / "store.db"
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: run_alone("migrate", "--db", place), range(2)))
    assert [(0, "")] * 2 == [(each.code, each.err) for each in done]
    made = [f"{place}: schema none -> {HEAD}\n"]
    assert [*made, f"{place}: schema {HEAD}, nothing to do\n"] == sorted(
        (each.out for each in done), key=lambda t: "nothing" in t
    )


def test_a_migrated_store_takes_a_replay(stores, tmp_path):
    """A store may be made first and filled later; until then it says that it is empty."""
    place = tmp_path / "store.db"
    ok("migrate", "--db", place)
    assert "holds no events yet" in refused("episodes", "--db", place, code=5)
    replay(ONE_CARD, db=place)
    assert verified(stores["one-card"]) == verified(place)


def test_a_rebuild_gives_equal_rows_and_mends_what_was_changed(copy_of):
    """Equal rows are switched to; rows that differ are named, and replaced only on demand."""
    place = copy_of("one-card")
    before = verified(place)
    assert {"equal"} == {row["compared"] for row in rows("rebuild", db=place)}
    assert before == verified(place)
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE episode SET outcome = 'absorbed'")
    connection.close()
    assert "episode differ" in refused("rebuild", "--db", place, code=6)
    compared = {row["table"]: row["compared"] for row in rows("rebuild", "--accept-difference", db=place)}
    assert ["episode"] == [table for table, result in compared.items() if result == "differs"]
    assert before == verified(place)


def test_two_replays_at_once_come_to_one_log(tmp_path):
    """Started together into one store, at least one ends well; another ends well too or says why not, and the store is whole."""
    recording = generated(tmp_path / "load.jsonl.zst", nodes=10, seconds=20, rate=100)
    alone, shared = tmp_path / "alone.db", tmp_path / "shared.db"
    replay(recording, db=alone)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: run_alone("replay", recording, "--db", shared), range(2)))
    assert 0 in {each.code for each in done}
    assert {each.code for each in done} <= {0, 5}
    assert not any("Traceback" in each.err for each in done)
    assert verified(alone) == verified(shared)
