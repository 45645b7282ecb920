"""More facts in ten seconds than are handed on at once: the slot has one census all the same, and the log names every device."""

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


@pytest.mark.parametrize("workers", [1, 2])
def test_what_the_breaker_heard_of_a_storm_is_in_the_log_device_by_device(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(pipeline, "_SLOT_FACTS_LIMIT", 7)
    lines = [*said("Healthy", "08:00:00", 100), *said("Unhealthy", "08:05:01", 200)]
    recording, store = write(tmp_path / "storm.jsonl", lines), str(tmp_path / "x.db")
    done = CliRunner().invoke(
        cli,
        ["replay", recording, "--db", store, "--quiet", "--workers", str(workers)],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    with closing(sqlite3.connect(store)) as database:
        log = [json.loads(row[0]) for row in database.execute("SELECT data FROM event_log")]
    named = [
        device
        for event in log
        if event["kind"] == "census_taken"
        for _, device, _, _ in event["payload"]["adverse"]
    ]
    assert DEVICES == len(named) == len(set(named))
