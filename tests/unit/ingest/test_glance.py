"""Lines glanced at give the facts that reading them in full gives."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ingest.diff import Mirror
from ingest.frames import Unread
from ingest.glance import glance
from ingest.observe import pod_fingerprint
from ingest.recording import RecordingWriter, read_recordings
from sickbay.errors import ObjectError
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


def test_a_pod_level_resize_shows_in_the_glance():
    """The Pod's own actuated and allocated amounts are read, so a change of them is no repeat."""
    before, after = _pod(1), _pod(1)
    after["status"] |= {"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "2"}}
    compact = [_line("2026-07-01T08:00:00Z", obj).replace(b" ", b"") for obj in (before, after)]
    marks = [glance(line).mark for line in compact]

    assert marks[0] != marks[1]
    assert [pod_fingerprint(before), pod_fingerprint(after)] == marks


@pytest.mark.parametrize("name", ["one-card", "node-level", "flapping"])
def test_a_recording_read_with_glances_gives_the_same_facts(name):
    """Passing a frame over changes what is known exactly as reading it does."""
    path, parked = str(EXAMPLES / f"{name}.jsonl.zst"), []
    glanced = _facts(read_recordings([path], on_parked=parked.append, glances=True))
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
    facts, passed, parked = _facts(read_recordings([str(path)], on_parked=parked_none, glances=True))

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


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "samples" / "pods").glob("*.json")), ids=lambda p: p.stem
)
def test_a_glance_at_a_sample_is_its_fingerprint_or_none(path):
    """What is passed over by the fingerprint of a glance is what reading would have found unchanged."""
    obj = json.loads(path.read_bytes())
    for pod in obj.get("items", [obj]):
        line = msgspec.json.encode(
            {"at": "2026-07-01T08:00:00Z", "resource": "pods", "type": "MODIFIED", "object": pod}
        )
        seen = glance(line)
        try:
            mark = pod_fingerprint(msgspec.json.decode(line)["object"])
        except ObjectError:
            mark = None

        assert seen is None or seen.mark == mark
        assert seen is not None or "null" in path.stem or pod["metadata"].get("resourceVersion") in (None, "")
