"""Stories of the real control plane, recorded by `sickbay record` and replayed: what the shipped recordings are made of."""

from __future__ import annotations

import time

import pytest
from cli import ok, replay
from cluster_stories import Story, incident, recording, upgrade
from control_plane import ControlPlane

GPU = "dra:gpu.example.com"
#: The stories are told four times as fast here as they are recorded for the examples, and judged by windows as short.
HASTE = 4
HASTY = """
version: hasty
ledger: {drift_grace_ms: 5000, rebuild_settle_ms: 5000, recheck_ms: 5000}
"""


def hurry(seconds):
    time.sleep(seconds / HASTE)


@pytest.mark.timeout(240)
def test_an_incident_is_recorded_and_replayed_to_the_decisions_that_it_deserves(own_plane, tmp_path):
    with Story(own_plane) as story, recording(own_plane, tmp_path / "incident.jsonl.zst"):
        incident(story, hurry)
    replay(tmp_path / "incident.jsonl.zst", db=tmp_path / "incident.db")
    episodes = ok("episodes", "--db", tmp_path / "incident.db", "-o", "json").json_lines()
    assert sorted(row["device_id"] for row in episodes) == [
        f"{GPU}/gpu-a1/gpu-1",
        "plugin:example.com/card/CARD-0",
    ]
    ok("verify", "--db", tmp_path / "incident.db")


@pytest.mark.timeout(360)
def test_with_an_upgrade_mappings_are_lost_and_found_again_and_amounts_stay_lost(tmp_path):
    path = tmp_path / "upgrade.jsonl.zst"
    with ControlPlane("1.36") as plane, Story(plane) as story, recording(plane, path):
        upgrade(story, hurry)
    db = tmp_path / "upgrade.db"
    (tmp_path / "hasty.yaml").write_text(HASTY, encoding="utf-8")
    replay(path, "--policy", tmp_path / "hasty.yaml", db=db)
    holds = ok("audit", "ledger-holds", "--db", db, "-o", "json").json_lines()
    (missing,) = [row for row in holds if row["reason"] == "mapping_missing"]
    assert missing["node"] == "gpu-a1"
    assert missing["held_until"] is not None
    drifts = ok("audit", "ledger-drift", "--db", db, "-o", "json").json_lines()
    assert [row["cause"] for row in drifts] == ["not_counted"]
    ok("verify", "--db", db)
