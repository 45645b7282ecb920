"""Every form of recording that `sickbay replay` takes, and the options that choose a part of one."""

from __future__ import annotations

import gzip
import json
import os
import threading

import pytest
import zstandard
from cli import TIMEOUT_S, example, log_of, phases, refused, replay, rows, verified
from cli_recordings import faulty, plain, pod, write

DEVICE = "plugin:nvidia.com/gpu/GPU-1"
PARTS = ("nodes", "leases", "resourceslices", "resourceclaims", "pods", None)
#: What a replay makes itself, whatever a dump holds.
OWN_KINDS = {"tick", "policy_changed", "breaker_state_changed"}


@pytest.fixture(scope="module")
def one_card():
    return plain("one-card")


@pytest.mark.parametrize("name", ["plain.jsonl", "a.gz", "no-ending"])
def test_compression_is_told_from_the_content(stores, one_card, tmp_path, name):
    """Plain, gzip and zstd give the same store, whatever the file is called."""
    compress = {"plain.jsonl": bytes, "a.gz": gzip.compress, "no-ending": zstandard.compress}[name]
    (tmp_path / name).write_bytes(compress(one_card))
    replay(tmp_path / name, db=tmp_path / "store.db")
    assert verified(stores["one-card"]) == verified(tmp_path / "store.db")


def test_standard_input_is_a_recording_too(stores, one_card, tmp_path):
    """`-` gives the store of the file, and again it is a no-op."""
    for _ in range(2):
        replay("-", db=tmp_path / "store.db", stdin=one_card)
        assert verified(stores["one-card"]) == verified(tmp_path / "store.db")


def test_another_standard_input_is_not_written_over_the_first(one_card, tmp_path):
    """Standard input has no name; what is in the store tells one recording from another."""
    replay("-", db=tmp_path / "store.db", stdin=one_card)
    before = verified(tmp_path / "store.db")
    problem = refused("replay", "-", "--db", tmp_path / "store.db", code=5, stdin=plain("flapping"))
    assert "another recording" in problem
    assert before["transition"] == verified(tmp_path / "store.db")["transition"]


def test_a_pipe_is_a_recording_too(stores, one_card, tmp_path):
    """A named pipe, as a shell makes one for `<(…)`, is read once and from its beginning."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(one_card,))
    writer.start()
    replay(pipe, db=tmp_path / "store.db")
    writer.join(TIMEOUT_S)
    assert verified(stores["one-card"]) == verified(tmp_path / "store.db")


@pytest.mark.parametrize("workers", [1, 2])
def test_several_files_are_one_recording(stores, one_card, tmp_path, workers):
    """A recording that is split by resource and given as several files gives the same store."""
    lines = one_card.splitlines()
    files = [
        write(
            tmp_path / f"{part}.jsonl", [line for line in lines if part == json.loads(line).get("resource")]
        )
        for part in PARTS
    ]
    summary = replay(*files, "--workers", workers, db=tmp_path / "store.db")
    assert len(lines) == summary["frames"]
    assert verified(stores["one-card"]) == verified(tmp_path / "store.db")


@pytest.mark.parametrize("workers", [1, 2])
def test_two_copies_of_a_recording_decide_what_one_does(stores, tmp_path, workers):
    """Two people recorded one incident: what both saw happened once."""
    replay(example("one-card"), example("one-card"), "--workers", workers, db=tmp_path / "store.db")
    for view in ("episodes", "devices", "node-incidents", "unknown-duration"):
        assert rows("audit", view, db=stores["one-card"]) == rows("audit", view, db=tmp_path / "store.db")


def managed(item, at):
    item["metadata"]["managedFields"] = [
        {"manager": "kubelet", "operation": "Update", "time": f"2026-07-01T{at}Z"}
    ]
    return item


def healthy():
    return managed(pod("first", "GPU-1", "Healthy", 1), "08:00:00")


def unhealthy():
    return managed(pod("first", "GPU-1", "Unhealthy", 2), "08:05:00")


def listed(item, indent=None):
    return json.dumps(
        {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [item]},
        indent=indent,
    )


def watched(kind, item, indent=None):
    return json.dumps({"type": kind, "object": item}, indent=indent)


def audited(verb, item, at):
    return json.dumps(
        {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "RequestResponse",
            "stage": "ResponseComplete",
            "verb": verb,
            "objectRef": {"resource": "pods", "namespace": "ml", "name": "first", "apiVersion": "v1"},
            "responseStatus": {"code": 200},
            "responseObject": item,
            "stageTimestamp": f"2026-07-01T{at}.000000Z",
        }
    )


FORMS = {
    "lists": lambda: [listed(healthy(), 4), listed(unhealthy(), 4)],
    "watch stream": lambda: [watched("ADDED", healthy(), 4), watched("MODIFIED", unhealthy(), 4)],
    "watch stream, one event a line": lambda: [watched("ADDED", healthy()), watched("MODIFIED", unhealthy())],
    "audit log": lambda: [
        audited("create", healthy(), "08:00:00"),
        audited("update", unhealthy(), "08:05:00"),
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_what_people_already_have_is_a_recording(tmp_path, form):
    """Lists and watch streams of kubectl and API-server audit logs open the episode that their objects tell of, at its time."""
    summary = replay(write(tmp_path / "recording", FORMS[form]()), db=tmp_path / "store.db")
    assert ("2026-07-01T08:00:00.000Z", 0) == (summary["from"], summary["parked"])
    (episode,) = rows("episodes", db=tmp_path / "store.db")
    assert (DEVICE, "2026-07-01T08:05:00.000Z") == (episode["device_id"], episode["opened_at"])
    verified(tmp_path / "store.db")


def test_objects_without_a_time_come_one_step_after_the_other(tmp_path):
    """Without managedFields the order counts, with a step that is stated."""
    items = [pod("first", "GPU-1", health, version) for version, health in ((1, "Healthy"), (2, "Unhealthy"))]
    recording = write(tmp_path / "stream", [watched("ADDED", items[0]), watched("MODIFIED", items[1])])
    summary = replay(recording, "--step-ms", 60_000, db=tmp_path / "store.db")
    assert ("1970-01-01T00:01:00.000Z", "1970-01-01T00:02:00.000Z") == (summary["from"], summary["to"])
    assert 1 == summary["open_episodes"]


def facts_of(db):
    """Facts that were seen, in the order of their times, as a topic of one partition would hold them."""
    events = [(json.loads(event), event) for event in log_of(db)]
    seen = [pair for pair in events if not pair[0]["causation_id"] and pair[0]["kind"] not in OWN_KINDS]
    return [event for _, event in sorted(seen, key=lambda pair: pair[0]["at_ms"])]


@pytest.mark.parametrize(
    ("name", "end"), [("one-card", "12:00"), ("node-level", "08:40"), ("flapping", "11:00")]
)
def test_a_dump_of_facts_gives_the_same_decisions(stores, tmp_path, name, end):
    """Facts taken from a log and replayed are the same facts, and lead to the same episodes, incidents and phases."""
    dump = write(tmp_path / "dump.jsonl", facts_of(stores[name]))
    replay(dump, "--until", f"2026-07-01T{end}:00Z", db=tmp_path / "store.db")
    assert sorted(facts_of(stores[name])) == sorted(facts_of(tmp_path / "store.db"))
    for view in ("episodes", "node-incidents", "devices", "inventory"):
        assert rows("audit", view, db=stores[name]) == rows("audit", view, db=tmp_path / "store.db")


def test_until_stops_there(tmp_path):
    """What comes later is not read."""
    summary = replay(example("one-card"), "--until", "2026-07-01T09:00:00Z", db=tmp_path / "store.db")
    assert (1, 1, "2026-07-01T09:00:00.000Z") == (
        summary["episodes"],
        summary["open_episodes"],
        summary["to"],
    )


def test_until_lets_time_pass_after_the_last_frame(tmp_path):
    """With an hour of silence after the fault the hold has ended, and nothing says Healthy: the card stays away."""
    recording = faulty(tmp_path / "short.jsonl")
    replay(recording, db=tmp_path / "short.db")
    replay(recording, "--until", "2026-07-02T09:00:00Z", db=tmp_path / "long.db")
    assert "quarantined" == phases(tmp_path / "long.db")[DEVICE]
    (short,), (long,) = (rows("episodes", db=tmp_path / f"{name}.db") for name in ("short", "long"))
    assert (0, 1) == (short["extensions"], long["extensions"])


def test_from_begins_with_what_was_known_then(tmp_path):
    """Nothing is decided before; a fault that stood then opens its episode then."""
    replay(example("one-card"), "--from", "2026-07-01T08:06:00Z", db=tmp_path / "store.db")
    (episode,) = rows("episodes", db=tmp_path / "store.db")
    assert "2026-07-01T08:06:00.000Z" == episode["opened_at"]
    assert "2026-07-01T08:06:00.000Z" <= min(
        row["at"] for row in rows("audit", "transitions", db=tmp_path / "store.db")
    )


def test_node_leaves_the_others_out(tmp_path):
    """Only the devices of the nodes that are named are judged."""
    replay(example("one-card"), "--node", "gpu-a2", db=tmp_path / "store.db")
    assert {"gpu-a2"} == {row["node"] for row in rows("audit", "devices", db=tmp_path / "store.db")}
    assert [] == rows("episodes", db=tmp_path / "store.db")


@pytest.mark.parametrize("option", [("--until", "2025-01-01T00:00:00Z"), ("--from", "2027-01-01T00:00:00Z")])
def test_a_time_outside_the_recording_is_said(tmp_path, option):
    """A replay of nothing is no success."""
    assert "no usable frame in the given time" in refused(
        "replay", example("one-card"), *option, "--db", tmp_path / "store.db", code=2
    )
