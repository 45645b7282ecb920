"""Lines glanced at on other cores give the facts that reading them in full gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingest.diff import Mirror
from ingest.frames import Unread
from ingest.glance import glance
from ingest.prefetch import Prefetcher
from ingest.recording import RecordingWriter, read_recordings
from sickbay.policy import Policy

EXAMPLES = Path(__file__).parents[3] / "examples"


def _facts(frames):
    mirror, facts, passed = Mirror(Policy().reading, 2), [], 0
    for frame in frames:
        if isinstance(frame, Unread):
            found = mirror.pass_over(frame)
            if found is None:
                found = [fact for read in frame.read() for fact in mirror.apply(read)]
            else:
                passed += 1
        else:
            found = mirror.apply(frame)
        facts += found
    return facts, passed, [p.place for p in mirror.drain_parked()]


@pytest.mark.parametrize("name", ["one-card", "node-level", "flapping"])
def test_a_recording_read_with_glances_gives_the_same_facts(name):
    """Passing a frame over changes what is known exactly as reading it does."""
    path, parked = str(EXAMPLES / f"{name}.jsonl.zst"), []
    with Prefetcher(2) as prefetcher:
        glanced = _facts(read_recordings([path], on_parked=parked.append, prefetcher=prefetcher))
    in_full = _facts(read_recordings([path], on_parked=parked.append))

    assert in_full[0] == glanced[0]
    assert in_full[2] == glanced[2]
    assert [] == parked


def _pod(rv, phase="Running", uid="u1"):
    return {
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "ml", "uid": uid, "resourceVersion": str(rv)},
        "spec": {"nodeName": "node-g1", "containers": []},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "lastProbeTime": str(rv)}]},
    }


def _line(at, obj, kind="MODIFIED", resource="pods"):
    return json.dumps({"at": at, "resource": resource, "type": kind, "object": obj}).encode()


def test_an_update_that_changes_nothing_is_passed_over_without_being_read(tmp_path):
    """Only the version moves; the line is never decoded here."""
    path = tmp_path / "pods.jsonl"
    writer = RecordingWriter(path)
    for rv in range(5, 25):
        writer.write(1_000 * rv, "pods", "ADDED" if rv == 5 else "MODIFIED", _pod(rv))
    writer.write(99_000, "pods", "MODIFIED", _pod(30, phase="Failed"))
    writer.close()
    with Prefetcher(1) as prefetcher:
        facts, passed, parked = _facts(
            read_recordings([str(path)], on_parked=parked_none, prefetcher=prefetcher)
        )

    assert 19 == passed
    assert ["Running", "Failed"] == [fact.phase for fact in facts]
    assert [] == parked


def parked_none(parked):
    raise AssertionError(parked)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[1]",
        b"[" * 100_000,
        b'{"at":"2026-07-01T08:00:00Z","type":"TICK"}',
        _line("2026-07-01T08:00:00Z", _pod(5), kind="ADDED"),
        _line("2026-07-01T08:00:00Z", _pod(5), resource="leases"),
        _line("no time", _pod(5)),
        _line("2026-07-01T08:00:00Z", _pod("05")),
        _line("2026-07-01T08:00:00Z", {"metadata": None}),
        _line("2026-07-01T08:00:00Z", None),
        b"\xff\xfe",
    ],
)
def test_whatever_is_no_ordinary_update_gets_no_glance(line):
    """It is read in full, where what is wrong gets its name and place."""
    assert glance(line) is None


def test_a_worker_that_died_costs_only_its_glances(tmp_path):
    """Lines that nobody glanced at are read in full."""
    path = tmp_path / "pods.jsonl"
    writer = RecordingWriter(path)
    for rv in range(5, 500):
        writer.write(1_000 * rv, "pods", "ADDED" if rv == 5 else "MODIFIED", _pod(rv))
    writer.close()
    with Prefetcher(2) as prefetcher:
        for process in prefetcher._processes:
            process.terminate()
            process.join(timeout=10)
        facts, passed, _ = _facts(read_recordings([str(path)], on_parked=parked_none, prefetcher=prefetcher))

    assert 0 == passed
    assert 1 == len(facts)
