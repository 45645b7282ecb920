"""More facts in ten seconds than are handed on at once: the slot has one tick and one census all the same, and the log names every device."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from cli_recordings import frame, pod, write
from click.testing import CliRunner

from sickbay.cli import cli, pipeline

DEVICES = 40


def said(health, at, version):
    return [
        frame(at, "MODIFIED", pod(f"p{n}", f"GPU-{n}", health, version + n, node=f"node-{n % 8}"))
        for n in range(DEVICES)
    ]


@pytest.fixture
def replayed(tmp_path, monkeypatch):
    """Replay lines in parts of seven facts; return ``(partition, event)`` in the order of each partition's log."""
    monkeypatch.setattr(pipeline, "_SLOT_FACTS_LIMIT", 7)

    def run(lines, *options):
        recording, store = write(tmp_path / "storm.jsonl", lines), str(tmp_path / "x.db")
        words = ["replay", recording, "--db", store, "--quiet", *options]
        done = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        question = "SELECT partition_number, data FROM event_log ORDER BY partition_number, log_offset"
        with closing(sqlite3.connect(store)) as database:
            return [(number, json.loads(data)) for number, data in database.execute(question)]

    return run


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_the_breaker_heard_of_a_storm_is_in_the_log_device_by_device(replayed, workers):
    log = replayed(
        [*said("Healthy", "08:00:00", 100), *said("Unhealthy", "08:05:01", 200)], "--workers", workers
    )
    named = [
        device
        for _, event in log
        if event["kind"] == "census_taken"
        for _, device, _, _ in event["payload"]["adverse"]
    ]
    assert DEVICES == len(named) == len(set(named))


def test_a_slot_in_parts_that_follows_a_silence_has_one_tick_and_it_comes_last(replayed):
    """Deadlines that fell due in the silence are carried out before its first part, and never between two."""
    lines = [*said("Healthy", "08:00:00", 100), *said("Unknown", "08:01:00", 200), *said("Healthy", "09:30:05", 300)]  # fmt: skip
    newest_ms, ticks = {}, []
    for number, event in replayed(lines, "--workers", "1", "--from", "2026-07-01T08:03:00Z"):
        if event["kind"] == "tick":
            assert event["at_ms"] >= newest_ms.get(number, 0), "time went back"
            ticks.append((number, event["at_ms"]))
        elif "observed_at_ms" in event["payload"]:
            newest_ms[number] = max(newest_ms.get(number, 0), event["at_ms"])
    assert len(ticks) == len(set(ticks)) > 0
