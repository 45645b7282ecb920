"""Worlds for the scheduler extender: what custody, the ledger and the facts say of nodes, and what kube-scheduler asks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from responders.extender.holdings import Holdings
from responders.view import View
from sickbay.decisions import (
    Amount,
    Decision,
    DeviceRecord,
    DeviceReleased,
    Entry,
    EntryPosted,
    Episode,
    Hold,
    QuarantineOpened,
    VerdictChanged,
)
from sickbay.facts import Container, DeviceHealthObserved, NodeObserved, PodObserved
from sickbay.policy import ExtenderPolicy, Policy, RespondPolicy, ReturnPolicy

T0 = 1_800_000_000_000
GPU = "nvidia.com/gpu"
DRIVER = "gpu.nvidia.com"


def policy_of(mode: str = "enforce", *, staged: Mapping[str, Any] | None = None, **more: Any) -> Policy:
    """Return a policy whose extender has this mode."""
    extender = ExtenderPolicy(mode=mode, **more)
    return Policy(respond=RespondPolicy(extender=extender), staged_return=ReturnPolicy(**(staged or {})))


class Known:
    """A view and the holdings over it, fed as the role feeds them."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.view = View()
        self.holdings = Holdings(self.view, policy or policy_of())

    def decided(self, *decisions: Decision) -> Known:
        for decision in decisions:
            self.view.fold(decision)
            self.holdings.fold_decision(decision)
        return self

    def told(self, *facts: Any) -> Known:
        for fact in facts:
            self.holdings.fold_fact(fact)
        return self


def unit(index: int | str, resource: str = GPU) -> str:
    return f"plugin:{resource}/GPU-{index}"


def node(
    name: str = "n1",
    *,
    allocatable: int = 8,
    capacity: int = 8,
    rv: int = 1,
    resource: str = GPU,
    **more: Any,
) -> NodeObserved:
    """Return a Node with devices of a plugin."""
    return NodeObserved(
        node=name, observed_at_ms=T0, rv=rv, node_uid=more.pop("uid", f"uid-{name}"), ready="True",
        capacity={"cpu": "32", resource: str(capacity)}, allocatable={"cpu": "32", resource: str(allocatable)}, **more,
    )  # fmt: skip


def pod(
    name: str,
    on: str = "n1",
    gpus: int = 1,
    *,
    rv: int = 10,
    phase: str = "Running",
    resource: str = GPU,
    **more: Any,
) -> PodObserved:
    """Return a bound Pod that asks for devices."""
    return PodObserved(
        node=on, observed_at_ms=T0, rv=rv, pod_uid=f"uid-{name}", namespace="ml", pod=name, phase=phase,
        containers=(Container(name="main", requests={"cpu": "1", resource: str(gpus)}),), **more,
    )  # fmt: skip


def word(
    device_id: str,
    health: str = "Healthy",
    holder: str = "a",
    on: str = "n1",
    *,
    rv: int = 20,
    live: bool = True,
    **more: Any,
) -> DeviceHealthObserved:
    """Return what a Pod's status says of a device."""
    return DeviceHealthObserved(
        node=on, observed_at_ms=T0, rv=rv, device_id=device_id, health=health, health_raw=health, live=live,
        pod_uid=f"uid-{holder}", namespace="ml", pod=holder, **more,
    )  # fmt: skip


def episode(**more: Any) -> Episode:
    return Episode(
        episode_id="e1", opened_at_ms=T0, cause="unhealthy", reason="said so", actor="sickbay", expires_at_ms=T0, hold_until_ms=T0, **more,
    )  # fmt: skip


def custody(device_id: str, phase: str = "quarantined", on: str = "n1", **more: Any) -> QuarantineOpened:
    """Return a decision that brings a device into a phase."""
    return QuarantineOpened(
        node=on, at_ms=T0, device_id=device_id, driver=device_id.removeprefix("plugin:").rpartition("/")[0],
        phase_before="in_service", record=DeviceRecord(phase=phase, since_ms=T0, cause="unhealthy", episode=episode(**more)),
    )  # fmt: skip


def released(device_id: str, on: str = "n1") -> DeviceReleased:
    return DeviceReleased(
        node=on, at_ms=T0, device_id=device_id, driver=GPU, phase_before="observing",
        record=DeviceRecord(phase="in_service", since_ms=T0), closed=episode(),
    )  # fmt: skip


def verdict(
    *holds: tuple[str, str], on: str = "n1", node_class: str = "stable", drivers: Sequence[str] = (DRIVER,)
) -> VerdictChanged:
    """Return a verdict with holds of ``(reason, scope)``; without any it is open."""
    return VerdictChanged(
        node=on, at_ms=T0, verdict="hold" if holds else "open", node_class=node_class, drivers=tuple(drivers),
        holds=tuple(Hold(reason=reason, scope=scope, since_ms=T0) for reason, scope in holds),
    )  # fmt: skip


def entry(
    book: str, key: str, account: str, on: str = "n1", kind: type[Any] = EntryPosted, **amounts: str
) -> Any:
    """Return the posting of an entry, or its reversal."""
    lines = tuple(Amount(name.replace("_", "-"), "unknown", text) for name, text in amounts.items())
    return kind(node=on, at_ms=T0, entry=Entry(book=book, key=key, account=account, amounts=lines, at_ms=T0))


def asking(
    requests: Mapping[str, str] | None = None,
    *,
    claims: Sequence[str] = (),
    names: Sequence[str] = ("n1",),
    **spec: Any,
) -> bytes:
    """Return ``ExtenderArgs`` as kube-scheduler sends them for a Pod with one container."""
    containers = [
        {"name": "main", "image": "none", "resources": {"requests": dict(requests or {"cpu": "1"})}}
    ]
    body = {
        "Pod": {
            "metadata": {"name": "new", "namespace": "ml", "uid": "uid-new", "creationTimestamp": None},
            "spec": {"containers": containers} | ({"resourceClaims": [{"name": c, "resourceClaimName": c} for c in claims]} if claims else {}) | spec,
            "status": {"phase": "Pending"},
        },
        "Nodes": None,
        "NodeNames": list(names),
    }  # fmt: skip
    return json.dumps(body).encode()


def fleet(nodes: int, devices: int = 8, policy: Policy | None = None) -> Known:
    """Return a fleet: two Pods with two devices each on every node, one node in twenty with a device in quarantine."""
    known = Known(policy)
    for index in range(nodes):
        name = node_name(index)
        known.told(node(name, allocatable=devices, capacity=devices))
        for slot in range(2):
            known.told(pod(f"{name}-{slot}", name, 2))
            known.told(
                *(word(unit(f"{name}-{2 * slot + n}"), "Healthy", f"{name}-{slot}", name) for n in range(2))
            )
        known.decided(verdict(on=name))
        if index % 20 == 0:
            # after it was free again
            known.told(word(unit(f"{name}-7"), "Healthy", "old", name, live=False))
            known.decided(custody(unit(f"{name}-7"), on=name))
    return known


def node_name(index: int) -> str:
    return f"ip-10-{index // 65_536}-{index // 256 % 256}-{index % 256}.region-1.compute.internal"
