"""A small ledger for tests and for the answers in docs/audit-views.md: two nodes, one claim that spans them.

On ``node-d`` (canary) the GPU's driver restarts from minute 3 to 5, the scheduler counted half of what the claim takes (drift
from minute 6 to 8, explained), and the Pod ``spare``, which asks for nothing by itself, claims the claim's entry in minutes 4 to
7. The Pod ``side`` has been there since minute 2, which a fact says that comes only after minute 8, and is gone at minute 9.
``node-e`` (stable) is closed by a person since minute 7, and has had a drift that nobody explains since minute 8.
"""

from __future__ import annotations

from typing import Any, Final

from log_builder import History, drift, entry, health, posted, published, reversed_at, verdict

from sickbay.decisions import (
    AlertRaised,
    Decision,
    DriftCleared,
    DriftFound,
    DuplicateRefused,
    DuplicateWithdrawn,
    Entry,
    Hold,
)

MINUTE: Final = 60_000
GPU: Final = "gpu.example.com"
CLAIM: Final[dict[str, Any]] = {"namespace": "team-a", "claim": "gpus", "claim_uid": "uid-gpus"}
TRAIN: Final[dict[str, Any]] = {"namespace": "team-a", "pod": "train", "pod_uid": "uid-train"}
SIDE: Final[dict[str, Any]] = {"namespace": "team-b", "pod": "side", "pod_uid": "uid-side"}
SPARE: Final[dict[str, Any]] = {"namespace": "team-b", "pod": "spare", "pod_uid": "uid-spare"}


def at(minute: int) -> int:
    """Return a time of the scenario."""
    return minute * MINUTE


def claim_entry(node: str, at_ms: int, numa: str) -> Entry:
    """Return what the claim takes on a node by the mapping of its device: 1.5005 cores and 2Gi."""
    return entry(
        "derived",
        f"claim/uid-gpus/dra:{GPU}/{node}/gpu-0//v1",
        "claims",
        at_ms,
        ("cpu", "1500500u", numa),
        ("memory", "2Gi", numa),
        device_id=f"dra:{GPU}/{node}/gpu-0",
        mapping_version="v1",
        **CLAIM,
    )


def side_entry(at_ms: int) -> Entry:
    """Return what the Pod ``side`` asks for."""
    return entry("common", "pod/uid-side", "pods", at_ms, ("cpu", "250m"), ("memory", "512Mi"), **SIDE)


def _supply(node: str) -> tuple[Decision, ...]:
    pool, device = f"{GPU}/{node}", f"dra:{GPU}/{node}/gpu-0"
    return tuple(
        posted(node, contribution)
        for contribution in (
            entry("common", f"node/uid-{node}", "supply", at(0), ("cpu", "8"), ("memory", "32Gi")),
            entry(
                "devices",
                f"device/{device}",
                "supply",
                at(0),
                (f"{pool}:devices", "1", "0"),
                (f"{pool}:memory", "80Gi", "0"),
                device_id=device,
            ),
            entry("counters", f"counters/{pool}", "supply", at(0), (f"{pool}:set-0/slices", "7")),
        )
    )


def _use(node: str, at_ms: int, numa: str) -> tuple[Decision, ...]:
    pool, device = f"{GPU}/{node}", f"dra:{GPU}/{node}/gpu-0"
    held: dict[str, Any] = {"device_id": device, **CLAIM}
    return tuple(
        posted(node, contribution)
        for contribution in (
            entry("common", "pod/uid-train", "pods", at_ms, ("cpu", "500m"), ("memory", "1Gi"), **TRAIN),
            claim_entry(node, at_ms, numa),
            entry("derived", "adjustment/uid-train", "adjustment", at_ms, ("cpu", "500u"), **TRAIN),
            entry(
                "recorded", "claim/uid-gpus", "claims", at_ms, ("cpu", "1501m"), ("memory", "1Gi"), **CLAIM
            ),
            entry("devices", f"use/{device}", "claims", at_ms, (f"{pool}:devices", "1", "0"), **held),
            entry("counters", f"use/{device}", "claims", at_ms, (f"{pool}:set-0/slices", "3.5"), **held),
        )
    )


def tell(log: History, node: str, at_ms: int, *decisions: Decision) -> None:
    """Append decisions, and before them a fact of their node that caused them."""
    cause = health(node, f"dra:{GPU}/{node}/gpu-0", at_ms, "Healthy", rv=1_000 + at_ms // MINUTE)
    log.decide(log.fact(cause), *decisions)


def add_ledger(log: History) -> None:
    """Append the scenario."""
    _node_d(log)
    _node_e(log)
    for node in ("node-d", "node-e"):
        log.fact(published(node, f"dra:{GPU}/{node}/gpu-0", at(9), rv=2_000))


def _node_d(log: History) -> None:
    node = "node-d"
    canary: dict[str, Any] = {"node_class": "canary", "drivers": (GPU,)}
    pool = f"{GPU}/{node}"
    refused = entry("recorded", "claim/uid-gpus", "claims", at(4), ("cpu", "1501m"), **SPARE | CLAIM)
    found = drift(
        "team-a",
        "gpus",
        "mapping_changed",
        claim_uid="uid-gpus",
        recorded={"memory": "1Gi", "cpu": "1501m"},
        derived={"memory": "2Gi", "cpu": "1500500u"},
        exact={"memory": "2Gi", "cpu": "1500500u"},
        detail="an earlier mapping gives 1Gi",
    )
    rebuilding = Hold(reason="driver_rebuilding", scope=pool, since_ms=at(3), detail="the pool is gone")
    tell(log, node, at(0), *_supply(node), verdict(node, at(0), **canary))
    tell(log, node, at(1), *_use(node, at(1), "0"))
    tell(log, node, at(3), verdict(node, at(3), rebuilding, **canary))
    tell(log, node, at(4), DuplicateRefused(node=node, at_ms=at(4), entry=refused, contender="uid-spare"))
    tell(log, node, at(5), verdict(node, at(5), **canary))
    tell(log, node, at(6), DriftFound(node=node, at_ms=at(6), drift=found))
    tell(log, node, at(7), DuplicateWithdrawn(node=node, at_ms=at(7), entry=refused, contender="uid-spare"))
    tell(log, node, at(8), DriftCleared(node=node, at_ms=at(8), drift=found))
    tell(log, node, at(2), posted(node, side_entry(at(2))))
    tell(log, node, at(9), reversed_at(node, at(9), side_entry(at(2))))


def _node_e(log: History) -> None:
    node = "node-e"
    stable: dict[str, Any] = {"node_class": "stable", "drivers": (GPU,)}
    closed = Hold(reason="claims_gate_closed", scope="node", since_ms=at(7), detail="boris: maintenance")
    tell(log, node, at(0), *_supply(node), verdict(node, at(0), **stable))
    tell(log, node, at(1), *_use(node, at(1), "1"))
    tell(
        log,
        node,
        at(2),
        AlertRaised(
            node=node,
            at_ms=at(2),
            clause="ledger.numa",
            reason="asked for one NUMA node, has devices on 0 and 1",
            alert_id="alert-numa",
            alert="numa_spanned",
            about="team-a/gpus",
        ),
    )
    tell(log, node, at(7), verdict(node, at(7), closed, **stable))
    unexplained = drift("team-a", "gpus", "unexplained", claim_uid="uid-gpus", recorded={"memory": "1Gi"})
    tell(log, node, at(8), DriftFound(node=node, at_ms=at(8), drift=unexplained))
