"""Nodes, and the Leases by which their kubelets say that they live.

Heartbeat times are not read: a Node object that changed nothing else says nothing new, and liveness is the Lease's
business, judged by arrival in ``ingest.diff`` and never by ``renewTime`` (kubernetes/kubernetes#108844, #113081).
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import msgspec

from ingest.observe.devices import read_taints
from ingest.observe.fields import (
    OWN_DOMAIN,
    OWN_MANAGER,
    Identity,
    Notes,
    fingerprint,
    is_int64,
    read_identity,
    section,
)
from sickbay.facts import NodeObserved
from sickbay.policy import ReadingPolicy

LEASE_NAMESPACE: Final = "kube-node-lease"
#: ``nodeLeaseDurationSeconds`` of the kubelet, used when a Lease does not say how long it lasts.
LEASE_MS_DEFAULT: Final = 40_000
_LEASE_SECONDS_MAX: Final = 86_400

_LABELS: Final = frozenset({
    "kubernetes.io/hostname", "topology.kubernetes.io/zone", "node.kubernetes.io/instance-type",
})  # fmt: skip


class NodeObservation(msgspec.Struct, frozen=True):
    """A Node as one object shows it."""

    fact: NodeObserved


class LeaseObservation(msgspec.Struct, frozen=True, gc=False):
    """A node's Lease."""

    identity: Identity
    lease_ms: int
    #: ``None`` when it is absent: the Lease then says nothing of liveness.
    renewed_at_ms: int | None


def node_fingerprint(obj: dict[str, Any], reading: ReadingPolicy | None = None) -> bytes:
    """Return a fingerprint of every raw part that ``observe_node`` reads besides the identity."""
    metadata = obj["metadata"]
    spec, status = section(obj, "spec", "Node"), section(obj, "status", "Node")
    info = status.get("nodeInfo")
    ready = _ready(status)
    return fingerprint((
        spec.get("taints"),
        spec.get("unschedulable"),
        status.get("capacity"),
        status.get("allocatable"),
        info.get("bootID") if isinstance(info, dict) else None,
        ready.get("status"),
        ready.get("reason"),
        _labels(metadata, reading),
    ))  # fmt: skip


def observe_node(
    obj: dict[str, Any], reading: ReadingPolicy | None = None, *, at_ms: int = 0, epoch: int = 0
) -> NodeObservation:
    """Read a Node.

    Raises ObjectError when its identity is missing or ``spec`` or ``status`` is no object; every illegal amount is refused
    alone.
    """
    identity = read_identity(obj, "Node", namespaced=False)
    where = f"Node {identity.name}"
    spec, status = section(obj, "spec", where), section(obj, "status", where)
    notes = Notes()
    ready = _ready(status)
    word = ready.get("status")
    info = notes.mapping(status.get("nodeInfo"), "status.nodeInfo")
    return NodeObservation(
        NodeObserved(
            node=identity.name,
            observed_at_ms=at_ms,
            epoch=epoch,
            rv=identity.rv,
            node_uid=identity.uid,
            ready=cast("Literal['True', 'False', 'Unknown']", word)
            if word in ("True", "False")
            else "Unknown",
            ready_reason=notes.text(ready, "reason", "status.conditions[Ready]"),
            boot_id=notes.text(info, "bootID", "status.nodeInfo"),
            unschedulable=notes.flag(spec, "unschedulable", "spec"),
            capacity=notes.quantities(status.get("capacity"), "status.capacity"),
            allocatable=notes.quantities(status.get("allocatable"), "status.allocatable"),
            taints=read_taints(spec.get("taints"), "spec.taints", notes),
            labels=_labels(obj["metadata"], reading),
            refused=tuple(sorted(notes.refused)),
        )
    )


def _ready(status: dict[str, Any]) -> dict[str, Any]:
    conditions = status.get("conditions")
    if isinstance(conditions, list):
        for condition in conditions:
            if isinstance(condition, dict) and condition.get("type") == "Ready":
                return condition
    return {}


def _labels(metadata: dict[str, Any], reading: ReadingPolicy | None) -> dict[str, str]:
    """Return the labels that are kept; those under our domain that this project wrote itself are not among them."""
    labels = metadata.get("labels")
    if not isinstance(labels, dict):
        return {}
    wanted = reading.node_labels if reading else ()
    kept = {}
    own: frozenset[str] | None = None
    for key in sorted(labels):
        value = labels[key]
        if not isinstance(value, str):
            continue
        if key.startswith(OWN_DOMAIN):
            own = _own_labels(metadata) if own is None else own
            if key not in own:
                kept[key] = value
        elif key in _LABELS or key in wanted:
            kept[key] = value
    return kept


def _own_labels(metadata: dict[str, Any]) -> frozenset[str]:
    """Return the label keys that ``managedFields`` ascribes to this project."""
    keys: set[str] = set()
    managed = metadata.get("managedFields")
    for entry in managed if isinstance(managed, list) else ():
        if not isinstance(entry, dict) or entry.get("manager") != OWN_MANAGER:
            continue
        fields: Any = entry
        for step in ("fieldsV1", "f:metadata", "f:labels"):
            fields = fields.get(step) if isinstance(fields, dict) else None
        if isinstance(fields, dict):
            keys.update(key.removeprefix("f:") for key in fields)
    return frozenset(keys)


def observe_lease(obj: dict[str, Any]) -> LeaseObservation | None:
    """Read a Lease; ``None`` for one outside ``kube-node-lease``, which is no node's.

    Raises ObjectError when its identity is missing or ``spec`` is no object.
    """
    identity = read_identity(obj, "Lease", namespaced=True)
    if identity.namespace != LEASE_NAMESPACE:
        return None
    spec = section(obj, "spec", f"Lease {identity.namespace}/{identity.name}")
    notes = Notes()
    seconds = spec.get("leaseDurationSeconds")
    usable = is_int64(seconds) and 0 < cast("int", seconds) <= _LEASE_SECONDS_MAX
    return LeaseObservation(
        identity=identity,
        lease_ms=cast("int", seconds) * 1000 if usable else LEASE_MS_DEFAULT,
        renewed_at_ms=notes.time_ms(spec, "renewTime", "spec"),
    )
