"""A replay that is killed anywhere and run again ends as one that was never disturbed, and an interrupted one leaves nobody behind."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

import pytest
from cli import example, replay, rows, start, verified
from cli_recordings import generated

POLL_S = 0.002
WAIT_S = 60


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """A recording of which a replay writes several batches, the digests of an undisturbed one, its size and its time."""
    folder = tmp_path_factory.mktemp("load")
    recording = generated(folder / "load.jsonl.zst", nodes=12, seconds=30, rate=200, fault_rate="0.9")
    began = time.monotonic()
    replay(recording, db=folder / "whole.db")
    return (
        recording,
        verified(folder / "whole.db"),
        (folder / "whole.db").stat().st_size,
        time.monotonic() - began,
    )


def written(store):
    """Bytes of a store and of its write-ahead log."""
    total = 0
    for path in (store, store.with_name(f"{store.name}-wal")):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def members(group):
    """Processes of a group that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, its_group, *_ = entry.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(its_group) == group and state != "Z":
                found.append(int(entry.parent.name))
    return found


def wait_until(holds, process=None):
    """Wait until something holds, or a process has ended; return whether it held."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if holds():
            return True
        if process is not None and process.poll() is not None:
            return False
        time.sleep(POLL_S)
    raise AssertionError(f"waited for {WAIT_S} s in vain")


def kill(process):
    process.kill()
    process.communicate(timeout=WAIT_S)


def kill_and_go_on(recording, store, workers, kills):
    """Start the same replay again and again, each time killed when ``kills`` say so; return how many were really killed."""
    killed = 0
    for due in kills:
        process = start("replay", recording, "--workers", workers, "--db", store, "--quiet")
        killed += wait_until(due(), process)
        kill(process)
        assert wait_until(lambda group=process.pid: not members(group)), "a worker outlived its replay"
    replay(recording, "--workers", workers, db=store)
    return killed


def after(seconds):
    def begin():
        end = time.monotonic() + seconds
        return lambda: time.monotonic() >= end

    return begin


def at_size(store, size):
    return lambda: lambda: written(store) >= size


@pytest.mark.parametrize("workers", [1, 2])
def test_a_replay_that_is_killed_and_run_again_ends_as_an_undisturbed_one(load, tmp_path, workers):
    """Killed at growing sizes of the store: log, positions and read models are those of a clean run, and the proof holds."""
    recording, expected, size, _ = load
    store = tmp_path / "killed.db"
    sizes = [at_size(store, size * part // 8) for part in (0, 1, 3, 6)]
    assert 2 <= kill_and_go_on(recording, store, workers, sizes)
    assert expected == verified(store)


def spread(start):
    """Shares of 1, without end, that fall evenly and never in step with the batches of a replay."""
    return ((start * 127 + number * 618) % 1000 / 1000 for number in count(1))


def test_a_replay_that_is_killed_at_any_moment_ends_as_an_undisturbed_one(load, tmp_path):
    """Killed within a second of its start, from before it has a store until it writes."""
    recording, expected, _, _ = load
    store = tmp_path / "killed.db"
    assert 1 <= kill_and_go_on(recording, store, 1, [after(share) for share in islice(spread(0), 4)])
    assert expected == verified(store)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("start_at", range(4))
@pytest.mark.parametrize("workers", [1, 2])
def test_many_kills_change_nothing(load, tmp_path, workers, start_at):
    """Six kills in a row, by time and by size in turn, into one store: eight rows of them."""
    recording, expected, size, seconds = load
    store = tmp_path / "killed.db"
    kills = [
        after(seconds * share) if number % 2 else at_size(store, round(size * share))
        for number, share in enumerate(islice(spread(start_at), 6))
    ]
    assert 3 <= kill_and_go_on(recording, store, workers, kills)
    assert expected == verified(store)


def test_a_worker_that_is_killed_ends_the_replay_with_a_word(load, tmp_path):
    """Without its fold workers a replay cannot go on: it says so in one line, and run again it does."""
    recording, expected, size, _ = load
    store = tmp_path / "killed.db"
    process = start("replay", recording, "--workers", 2, "--db", store, "--quiet")
    assert wait_until(lambda: written(store) >= size // 4, process)
    for victim in members(process.pid):
        if victim != process.pid:
            os.kill(victim, signal.SIGKILL)
    out, err = process.communicate(timeout=WAIT_S)
    assert (1, b"", b"sickbay: a fold worker died; run again, the log goes on where it stopped\n") == (
        process.returncode,
        out,
        err,
    )
    assert wait_until(lambda: not members(process.pid))
    replay(recording, db=store)
    assert expected == verified(store)


def interrupt(recording, store, workers, due):
    process = start("replay", recording, "--workers", workers, "--db", store, "--quiet")
    assert wait_until(due, process)
    # as a terminal does it: every process of the group gets the signal
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (130, b"", b"") == (process.returncode, out, err.strip())
    assert wait_until(lambda: not members(process.pid)), "a worker outlived its replay"


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_ends_everything_in_silence(load, tmp_path, workers):
    """Ctrl-C while workers start and while they work: exit code 130, no traceback of anybody, no process left, and the store goes on."""
    recording, expected, size, _ = load
    store = tmp_path / "interrupted.db"
    interrupt(recording, store, workers, store.exists)
    interrupt(recording, store, workers, lambda: written(store) >= size // 4)
    replay(recording, "--workers", workers, db=store)
    assert expected == verified(store)


@pytest.mark.slow
def test_an_interrupt_at_any_moment_ends_everything_in_silence(load, tmp_path):
    """Every few milliseconds from the making of the store on, with workers."""
    recording, _, _, _ = load
    for step in range(25):
        store = tmp_path / f"{step}.db"

        def due(store=store, delay=step * 0.02, seen=[]):  # noqa: B006 - remembers when the store was first seen
            if store.exists() and not seen:
                seen.append(time.monotonic())
            return bool(seen) and time.monotonic() >= seen[0] + delay

        interrupt(recording, store, 2, due)


def test_a_killed_verify_leaves_no_trace_in_the_store(load, tmp_path):
    """Proving reads only."""
    store = tmp_path / "store.db"
    replay(example("one-card"), db=store)
    before = verified(store)
    process = start("verify", "--db", store)
    time.sleep(0.5)
    kill(process)
    assert before == verified(store)
    assert [] == rows("audit", "parked", db=store)
