"""What is published about a device, version by version."""

from __future__ import annotations

import msgspec
import pytest
from log_builder import published
from log_scenarios import gpu

from projections.inventory import next_publication
from sickbay.facts import DeviceWithdrawn

DEVICE = gpu("node-a", 0)


def at(rv, *, epoch=0, numa=0):
    return msgspec.structs.replace(published("node-a", DEVICE, 100 + rv, rv=rv, numa=numa), epoch=epoch)


def gone(rv, *, epoch=0):
    return DeviceWithdrawn(
        node="node-a",
        observed_at_ms=500,
        epoch=epoch,
        rv=rv,
        device_id=DEVICE,
        driver="gpu.example.com",
        pool="node-a",
        device="gpu-0",
        reason="slice_deleted",
    )


def test_the_first_publication_is_taken():
    """resourceVersions are kept as text, NUMA nodes as a JSON list."""
    row = next_publication(None, at(9, numa=1))
    assert ("9", "0", "[1]", None) == tuple(
        row[name] for name in ("resource_version", "status_epoch", "numa_nodes", "withdrawn_at_ms")
    )


@pytest.mark.parametrize(("known", "event"), [(9, at(9)), (9, at(8)), (10, at(9)), (100, at(99))])
def test_a_repeat_or_an_older_publication_changes_nothing(known, event):
    """Versions are compared as numbers: 9 is older than 10."""
    assert None is next_publication(next_publication(None, at(known)), event)


def test_a_new_epoch_is_newer_whatever_its_resource_version():
    """After an etcd restore the versions start lower."""
    assert "1" == next_publication(next_publication(None, at(100)), at(1, epoch=1))["resource_version"]
    assert None is next_publication(next_publication(None, at(1, epoch=1)), at(100))


def test_a_withdrawal_keeps_what_the_device_was():
    """It may carry the version of the last publication, not an older one, and happens once."""
    before = next_publication(None, at(9, numa=3))
    row = next_publication(before, gone(9))
    assert (500, "slice_deleted", "[3]") == (
        row["withdrawn_at_ms"],
        row["withdrawn_reason"],
        row["numa_nodes"],
    )
    assert None is next_publication(before, gone(8))
    assert None is next_publication(row, gone(12))


def test_a_device_that_is_published_again_is_there_again():
    """A newer publication ends the withdrawal."""
    row = next_publication(next_publication(next_publication(None, at(9)), gone(10)), at(11))
    assert (None, "") == (row["withdrawn_at_ms"], row["withdrawn_reason"])


def test_a_withdrawal_of_an_unknown_device_is_recorded():
    """Nothing is invented about what it was."""
    row = next_publication(None, gone(3))
    assert (500, "[]", None, "") == (
        row["withdrawn_at_ms"],
        row["numa_nodes"],
        row["physical_id"],
        row["node_uid"],
    )
