"""The recordings of real control planes that ship, and where they lead; ``tests/cluster`` plays their stories anew."""

from __future__ import annotations

import pytest
from cli import ok, rows

CARD = "plugin:example.com/card/CARD-0"
GPU = "dra:gpu.example.com/gpu-a1/gpu-1"


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_both_versions_lead_to_the_same_custody(stores, version):
    db = stores[f"recorded/{version}"]
    opened = rows("episodes", db=db)
    assert sorted(row["device_id"] for row in opened) == [GPU, CARD]
    walk = [
        (row["device_id"], row["phase_after"])
        for row in rows("audit", "transitions", db=db)
        if row["phase_before"] != row["phase_after"]
    ]
    assert sorted(walk) == [
        (GPU, "quarantined"),
        ("dra:gpu.example.com/gpu-a2/gpu-0", "suspect"),
        (CARD, "quarantined"),
    ]


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_what_the_real_scheduler_recorded_is_what_follows_from_slices_and_claims(stores, version):
    db = stores[f"recorded/{version}"]
    assert rows("audit", "ledger-drift", db=db) == []
    assert rows("audit", "ledger-holds", db=db) == []


def test_an_upgrade_loses_mappings_until_drivers_publish_anew_and_recorded_amounts_for_good(stores):
    """No resourceVersion moved: a list after the restart showed the same objects without them."""
    db = stores["recorded/upgrade"]
    (missing,) = [row for row in rows("audit", "ledger-holds", db=db) if row["reason"] == "mapping_missing"]
    assert (missing["node"], missing["scope"][:8]) == ("gpu-a1", "ml/train")
    assert missing["held_until"] is not None
    (drift,) = rows("audit", "ledger-drift", db=db)
    assert (drift["cause"], drift["recorded"], drift["ended_at"]) == ("not_counted", "{}", None)
    assert "new claims wait" not in ok("ledger", "gpu-a1", "--db", db).out
