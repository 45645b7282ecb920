"""What is published about a device, as the next version of its row: pure.

A publication must be newer, by ``(epoch, resourceVersion)``, than all that is known of the device; a withdrawal may carry the
version of what it withdraws. What comes late changes nothing here and stays in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from projections.rows import Row, canonical
from sickbay.facts import DevicePublished, DeviceWithdrawn


def next_publication(
    before: Mapping[str, Any] | None, event: DevicePublished | DeviceWithdrawn
) -> Row | None:
    """Return the row that follows ``before``, ``None`` when the event says nothing new."""
    version = (event.epoch, event.rv)
    known = (int(before["status_epoch"]), int(before["resource_version"])) if before else (-1, -1)
    row: Row = {
        "node": event.node,
        "device_id": event.device_id,
        "driver": event.driver,
        "pool": event.pool,
        "device": event.device,
        "status_epoch": str(event.epoch),
        "resource_version": str(event.rv),
    }
    if isinstance(event, DevicePublished):
        if known >= version:
            return None
        return row | {
            "physical_id": event.physical_id,
            "node_uid": event.node_uid,
            "numa_nodes": canonical(event.numa.nodes),
            "withdrawn_at_ms": None,
            "withdrawn_reason": "",
        }
    if known > version or (before and before["withdrawn_at_ms"] is not None):
        return None
    kept = before or {"physical_id": None, "node_uid": "", "numa_nodes": canonical(())}
    return row | {
        "physical_id": kept["physical_id"],
        "node_uid": kept["node_uid"],
        "numa_nodes": kept["numa_nodes"],
        "withdrawn_at_ms": event.observed_at_ms,
        "withdrawn_reason": event.reason,
    }
