"""A recording that is silent for months while the breaker waits for devices: the silence costs nothing and changes nothing."""

from __future__ import annotations

import time

import pytest
from cli import rows, verified
from cli_recordings import frame, pod, write
from click.testing import CliRunner

from sickbay.cli import cli

NODES = 12


def said(health, day, version):
    """Every node says the same of its card."""
    return [
        frame("08:00:00", "MODIFIED", pod(f"p{n}", f"GPU-{n}", health, version + n, node=f"node-{n}")).replace("2026-07-01", day)
        for n in range(NODES)
    ]  # fmt: skip


def replay(recording, store, workers):
    options = ["--until", "2026-10-01T09:00:00Z", "--quiet", "--workers", str(workers)]
    done = CliRunner().invoke(
        cli, ["replay", recording, "--db", str(store), *options], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """The fleet turns Unknown on a day of July and is Healthy again in October."""
    lines = [
        *said("Healthy", "2026-07-01", 100),
        *said("Unknown", "2026-07-02", 200),
        *said("Healthy", "2026-10-01", 300),
    ]
    return write(tmp_path_factory.mktemp("silence") / "silence.jsonl", lines)  # fmt: skip


def test_the_breaker_waits_through_months_of_silence_and_closes_when_the_fleet_is_known_again(
    recording, tmp_path
):
    store = tmp_path / "one.db"
    replay(recording, store, workers=1)

    history = [
        (row["scope"], row["state"], row["at"][:10]) for row in rows("audit", "breaker-history", db=store)
    ]
    assert [
        ("cluster", "open", "2026-07-02"), ("driver:nvidia.com/gpu", "open", "2026-07-02"),
        ("cluster", "closed", "2026-07-02"), ("driver:nvidia.com/gpu", "closed", "2026-10-01"),
    ] == history  # fmt: skip
    phases = {row["phase_after"] for row in rows("audit", "transitions", db=store)}
    assert {"suspect", "in_service"} == phases

    began = time.monotonic()
    other = tmp_path / "two.db"
    replay(recording, other, workers=2)
    assert time.monotonic() - began < 30, "eight hundred thousand slots were gone through one by one"
    assert verified(store) == verified(other)
