"""``sickbay run --embedded`` as a user runs it: on a recording, killed at any point, asked while it runs."""

import signal
import sqlite3
import time

import pytest
from cli import example, replay, run, start
from cli_recordings import frame, pod, write

from projections.engine import Store


def _recording(path):
    """Twelve cards on three nodes; one fails for good, one comes back, and then many at once: the breaker opens."""
    lines = []
    for second in range(0, 600, 10):
        for number in range(12):
            health = "Healthy"
            if (number == 1 and second >= 100) or (number == 2 and 150 <= second < 200):
                health = "Unhealthy"
            if number >= 3 and second >= 400:
                health = "Unhealthy"
            at = f"08:{second // 60:02d}:{second % 60:02d}"
            lines.append(
                frame(
                    at,
                    "ADDED" if second == 0 else "MODIFIED",
                    pod(
                        f"p{number}",
                        f"GPU-{number}",
                        health,
                        100 + second * 12 + number,
                        node=f"node-{number % 3}",
                    ),
                )
            )
    lines.insert(30, "{broken")
    return write(path, lines)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return _recording(tmp_path_factory.mktemp("recording") / "cluster.jsonl")


def _run(recording, db, **env):
    return run(
        "run", "--embedded", "--from-recording", recording, "--speed", 0, "--db", db, "--log-format", "text",
        env=env,
    )  # fmt: skip


def _state(db):
    with Store.open(db, read_only=True) as store:
        log = [
            [(r.offset, r.data, r.chain) for r in store.read(number)] for number in range(store.partitions)
        ]
        return log, store.digests()


@pytest.fixture(scope="module")
def whole(recording, tmp_path_factory):
    """The store of a run that nobody stopped."""
    db = tmp_path_factory.mktemp("whole") / "whole.db"
    assert _run(recording, db).code == 3
    return db


def test_what_it_writes_is_what_it_decided_and_what_it_could_not_read_is_parked(whole):
    verified = run("verify", "--db", whole, "--output", "json")
    assert verified.code == 0, verified.err
    assert "interrupted" not in verified.err
    assert [
        row["reason"][:20] for row in run("audit", "parked", "--db", whole, "--output", "json").json_lines()
    ] == ["not readable as JSON"]
    history = run("audit", "breaker-history", "--db", whole, "--output", "json").json_lines()
    assert [row["scope"] for row in history] == ["cluster", "driver:nvidia.com/gpu"]


@pytest.mark.parametrize("place", ["embedded.decided", "embedded.written"])
def test_killed_at_any_point_and_started_again_it_writes_the_log_of_a_run_that_was_not_killed(
    recording, whole, place, tmp_path
):
    db = tmp_path / "killed.db"
    for nth in (1, 8, 30):  # each counts from its own start, so the last kill comes late
        killed = _run(recording, db, SICKBAY_FAILPOINT=f"{place}:{nth}:kill9")
        assert killed.code == -signal.SIGKILL
    assert _run(recording, db).code == 3
    assert _state(db) == _state(whole)


def test_run_again_to_its_end_it_adds_nothing(recording, whole, tmp_path):
    db = tmp_path / "copy.db"
    with sqlite3.connect(whole) as source, sqlite3.connect(db) as copied:
        source.backup(copied)
    assert _run(recording, db).code == 3
    assert _state(db) == _state(whole)


@pytest.mark.parametrize("name", ["node-level", pytest.param("one-card", marks=pytest.mark.slow)])
def test_it_comes_to_the_episodes_of_a_replay(name, tmp_path):
    lived, replayed = tmp_path / "lived.db", tmp_path / "replayed.db"
    assert _run(example(name), lived).code == 0
    replay(example(name), db=replayed)
    for view in ("episodes", "node-incidents", "ledger-balances"):
        one, two = (
            run("audit", view, "--db", db, "--output", "json").json_lines() for db in (lived, replayed)
        )
        for row in (*one, *two):
            for column in ("decisions", "evidence_facts"):
                row.pop(column, None)
        assert one == two


def test_it_can_be_asked_and_told_while_it_runs_and_stops_in_order(recording, tmp_path):
    db = tmp_path / "live.db"
    process = start(
        "run", "--embedded", "--from-recording", recording, "--speed", 60, "--db", db, "--log-format", "text"
    )
    try:
        device = "plugin:nvidia.com/gpu/GPU-0"
        for _ in range(100):
            time.sleep(0.1)
            if db.exists() and run("audit", "inventory", "--db", db, "--output", "json").code == 0:
                rows = run("audit", "inventory", "--db", db, "--output", "json").json_lines()
                if any(row["device_id"] == device for row in rows):
                    break
        asked = run(
            "hold", device, "--node", "node-0", "--reason", "fan noise", "--db", db,
            "--at", "2026-07-01T08:00:30Z", "--until", "2026-07-02T08:00:00Z",
        )  # fmt: skip
        assert asked.code == 0, asked.err
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 3, err.decode()  # one line was parked
    assert b"Traceback" not in err
    assert run("verify", "--db", db).code == 0
    held = run("audit", "requests", "--db", db, "--output", "json").json_lines()
    assert [row["device_id"] for row in held] == [device]


def test_without_embedded_it_says_what_to_run(tmp_path):
    done = run("run", "--db", tmp_path / "x.db")
    assert (done.code, "sickbay ingest" in done.err) == (2, True)


def test_a_recording_and_a_cluster_are_not_read_at_once(recording, tmp_path):
    done = run(
        "run", "--embedded", "--from-recording", recording, "--context", "x", "--db", tmp_path / "x.db"
    )
    assert (done.code, "--from-recording is instead" in done.err) == (2, True)


def test_a_store_of_a_replay_is_not_written_into(recording, tmp_path):
    db = tmp_path / "replayed.db"
    replay(example("one-card"), db=db)
    done = _run(recording, db)
    assert done.code == 5
    assert "follows the log" in done.err
