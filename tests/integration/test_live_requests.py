"""`sickbay hold`, `release` and `gate` on a store that follows Kafka: they go there, and tell what the workers decided."""

from __future__ import annotations

import json

import pytest
from cli import example
from cli_recordings import frame, pod, write
from live_processes import Process, eventually, read_topic, run
from projecting import sources_of

from sickbay.cloudevents import unpack

DEVICE = "dra:gpu.nvidia.com/gpu-a1/gpu-2"
AT = ("--at", "2026-07-01T12:00:00Z")
HOLD = ("hold", DEVICE, *AT, "--until", "2026-07-02T08:00:00Z", "--reason", "loud", "--actor", "ann")


@pytest.fixture
def live(kafka_ready, tmp_path):
    """Return what runs a command on a store that a worker and a projector keep level with a recording."""
    place = str(tmp_path / "live.db")
    run(kafka_ready, "ingest", "--from-recording", example("one-card"), "--speed", "0")

    def ask(*arguments, check=True, form=("--output", "json")):
        done = run(kafka_ready, *arguments, "--db", place, *form, check=check)
        return done if not check else ([json.loads(line) for line in done.stdout.splitlines()], done.stderr)

    ends = {
        number: len(records) for number, records in read_topic(kafka_ready, kafka_ready.topics.facts).items()
    }

    def is_level():
        found = sources_of(place)
        return all(found.get(("facts", number), 0) >= end for number, end in ends.items())

    with (
        Process(kafka_ready, tmp_path, "work", "work") as work,
        Process(kafka_ready, tmp_path, "project", "project", "--db", place) as project,
    ):
        eventually(is_level, "the recording in the store", processes=(work, project))
        yield ask


def facts(settings, kind):
    """Return the ids of the facts of a kind in Kafka, by partition."""
    return [
        opened.envelope.event_id
        for records in read_topic(settings, settings.topics.facts).values()
        for record in records
        for opened in unpack(record.value, record.headers)
        if opened.envelope.kind == kind
    ]


def storm(path):
    """Twelve nodes whose cards all turn Unknown in one minute."""
    turns = [("ADDED", "08:00:00", "Healthy"), ("MODIFIED", "08:01:00", "Unknown")]
    pods = [
        frame(at, kind, pod(f"p{n}", f"GPU-{n}", health, 100 * number + n, node=f"node-{n}"))
        for number, (kind, at, health) in enumerate(turns, 1)
        for n in range(12)
    ]
    return write(path, [*pods, '{"at": "2026-07-01T08:01:30Z", "type": "TICK"}'])


@pytest.mark.timeout(180)
def test_a_breaker_that_a_storm_opened_is_closed_by_a_persons_word(kafka_ready, tmp_path):
    place = str(tmp_path / "live.db")
    db = ("--db", place, "--output", "json")
    run(kafka_ready, "ingest", "--from-recording", storm(tmp_path / "storm.jsonl"), "--speed", "0")

    def status():
        done = run(kafka_ready, "breaker", "status", *db, check=False)
        return {row["scope"]: row["state"] for row in map(json.loads, done.stdout.splitlines())}

    scope = "driver:nvidia.com/gpu"
    with (
        Process(kafka_ready, tmp_path, "work", "work") as work,
        Process(kafka_ready, tmp_path, "project", "project", "--db", place) as project,
    ):
        eventually(lambda: status().get(scope) == "open", "an open breaker", processes=(work, project))
        word = ("--reason", "rolled back", "--actor", "ann", "--at", "2026-07-01T08:02:00Z")
        told = run(kafka_ready, "breaker", "reset", scope, *word, *db)
        assert [(scope, "closed")] == [
            (row["scope"], row["state"]) for row in map(json.loads, told.stdout.splitlines())
        ]
        assert {scope: "closed", "cluster": "open"} == status()
        again = run(kafka_ready, "breaker", "reset", scope, *word, *db, check=False)
        assert (2, True) == (again.returncode, "is not open" in again.stderr)
        # every partition heard of it, and a fold of the log agrees
        assert len(facts(kafka_ready, "breaker_reset_requested")) == 1
        run(kafka_ready, "verify", "--live", *db)


@pytest.mark.timeout(180)
def test_requests_go_to_kafka_and_the_workers_answer_them(live, kafka_ready):
    told, _ = live(*HOLD)
    assert [("quarantine_opened", "in_service", "quarantined", "loud")] == [
        (row["kind"], row["phase_before"], row["phase_after"], row["reason"]) for row in told
    ]
    # asked again it is one request, which is written and answered once
    assert "recorded; nothing changes" in "".join(live(*HOLD, form=(), check=False).stdout)
    assert len(facts(kafka_ready, "hold_requested")) == 1

    told, _ = live("release", "last", "--reason", "quiet", "--at", "2026-07-01T12:30:00Z")
    assert ["observation_started"] == [row["kind"] for row in told]

    closing = ("--reason", "upgrade", "--at", "2026-07-01T12:31:00Z")
    told, notes = live("gate", "close", "cluster", *closing)
    assert {("hold", 1)} == {(row["verdict"], row["changed"]) for row in told}
    assert notes == ""
    assert len(facts(kafka_ready, "claims_gate_requested")) == kafka_ready.partitions
    told, notes = live("gate", "close", "cluster", "--reason", "again", "--at", "2026-07-01T12:32:00Z")
    assert {("hold", 0)} == {(row["verdict"], row["changed"]) for row in told}
    assert "the gate of cluster was closed already" in notes
    opening = ("--reason", "done", "--at", "2026-07-01T12:33:00Z")
    told, _ = live("gate", "open", "cluster", *opening)
    assert {("open", 1)} == {(row["verdict"], row["changed"]) for row in told}

    refused = live("gate", "close", "node:nobody", *closing, check=False)
    assert refused.returncode == 2
    proved, _ = live("verify", "--live")
    assert any("equal those in the store" in line for line in proved[0]["live"])
