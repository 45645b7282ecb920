"""A ResourceClaim: what it holds, and for whom (resource.k8s.io v1, v1beta2 and v1beta1 have one status).

The allocation says all that is charged; of the spec only what can name a NUMA node is read (``ingest.observe.requests``).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ingest.observe.fields import (
    Notes,
    controller_of,
    fingerprint,
    qualified,
    read_identity,
    section,
    single_node,
)
from ingest.observe.requests import read_selected, read_together
from sickbay.facts import AllocationResult, ClaimObserved, Consumer

#: Written by the claim controller and by the scheduler (KEP-5004: the one valid value is "true").
_POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
_EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"


class ClaimObservation(msgspec.Struct, frozen=True):
    """A ResourceClaim as one object shows it; ``fact`` holds all results and node ""."""

    fact: ClaimObserved
    #: The one node that ``allocation.nodeSelector`` names, else "".
    selector_node: str
    #: Uid of the Pod that controls the claim, else "".
    owner_pod: str
    #: The pod-local claim name that the claim was made for, ``None`` when it does not say.
    pod_claim_name: str | None
    #: Uids of consuming Pods; consumers that are no Pods are not among them.
    consumer_pods: frozenset[str]


def claim_fingerprint(obj: dict[str, Any]) -> bytes:
    """Return a fingerprint of every raw part that ``observe_claim`` reads besides the identity."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    annotations = metadata.get("annotations") or {}
    if not isinstance(status, dict) or not isinstance(annotations, dict):
        return fingerprint((status, annotations))
    spec = obj.get("spec")
    asked = spec.get("devices") if isinstance(spec, dict) else spec
    if isinstance(asked, dict):
        asked = (asked.get("requests"), asked.get("constraints"))
    devices = status.get("devices")
    if isinstance(devices, list):
        devices = [
            (item.get("driver"), item.get("pool"), item.get("device"), item.get("conditions"))
            if isinstance(item, dict)
            else item
            for item in devices
        ]
    return fingerprint((
        status.get("allocation"),
        status.get("reservedFor"),
        devices,
        asked,
        metadata.get("ownerReferences"),
        metadata.get("deletionTimestamp"),
        annotations.get(_POD_CLAIM_NAME),
        annotations.get(_EXTENDED),
    ))  # fmt: skip


def observe_claim(obj: dict[str, Any], *, at_ms: int = 0, epoch: int = 0) -> ClaimObservation:
    """Read a ResourceClaim.

    Raises ObjectError when its identity is missing or ``status`` or ``status.allocation`` is no object.
    """
    identity = read_identity(obj, "ResourceClaim", namespaced=True)
    where = f"ResourceClaim {identity.namespace}/{identity.name}"
    status, metadata = section(obj, "status", where), obj["metadata"]
    allocation = section(status, "allocation", f"{where}: status")
    notes = Notes()
    annotations = notes.mapping(metadata.get("annotations"), "metadata.annotations")
    owner = controller_of(metadata, notes)
    devices = notes.mapping(allocation.get("devices"), "status.allocation.devices")
    consumers = _consumers(status.get("reservedFor"), notes)
    results = _results(devices.get("results"), notes)
    asked = notes.mapping(notes.mapping(obj.get("spec"), "spec").get("devices"), "spec.devices")
    fact = ClaimObserved(
        node="",
        observed_at_ms=at_ms,
        epoch=epoch,
        rv=identity.rv,
        claim_uid=identity.uid,
        namespace=identity.namespace,
        claim=identity.name,
        results=results,
        consumers=consumers,
        owner=f"{owner.get('kind', '')}/{owner.get('uid', '')}" if owner else "",
        extended_resource=annotations.get(_EXTENDED) == "true",
        deletion_requested_at_ms=notes.time_ms(metadata, "deletionTimestamp", "metadata"),
        allocated_at=notes.text(allocation, "allocationTimestamp", "status.allocation") or None,
        device_conditions=_conditions(status.get("devices"), notes),
        together=read_together(asked, notes),
        selected=read_selected(asked, results, notes),
        refused=tuple(sorted(notes.refused)),
    )
    owner_uid = owner.get("uid")
    return ClaimObservation(
        fact=fact,
        selector_node=single_node(allocation.get("nodeSelector")),
        owner_pod=owner_uid if owner.get("kind") == "Pod" and isinstance(owner_uid, str) else "",
        pod_claim_name=notes.text(annotations, _POD_CLAIM_NAME, "metadata.annotations") or None,
        consumer_pods=consuming_pods(consumers),
    )


def consuming_pods(consumers: tuple[Consumer, ...]) -> frozenset[str]:
    """Return the uids of the consumers that are Pods."""
    return frozenset(
        consumer.uid for consumer in consumers if consumer.resource == "pods" and not consumer.api_group
    )


def _results(value: object, notes: Notes) -> tuple[AllocationResult, ...]:
    results = []
    for path, item in notes.objects(value, "status.allocation.devices.results"):
        driver, pool = notes.name(item, "driver", path), notes.name(item, "pool", path)
        device = notes.name(item, "device", path)
        if not (driver and pool and device):
            notes.refuse(path, "driver, pool and device must all be given")
            continue
        request, _, subrequest = notes.name(item, "request", path).partition("/")
        results.append(
            AllocationResult(
                request=request,
                subrequest=subrequest,
                driver=driver,
                pool=pool,
                device=device,
                admin_access=notes.flag(item, "adminAccess", path),
                share_id=notes.name(item, "shareID", path),
                consumed=_consumed(item.get("consumedCapacity"), driver, f"{path}.consumedCapacity", notes),
                tolerations=_tolerations(item.get("tolerations"), f"{path}.tolerations", notes),
                binding_conditions=tuple(
                    sorted(notes.texts(item.get("bindingConditions"), f"{path}.bindingConditions"))
                ),
            )
        )
    return tuple(sorted(results, key=result_order))


def result_order(result: AllocationResult) -> tuple[str, str, str]:
    """Return what results are sorted by: the order in which they were listed means nothing."""
    return (result.device_id, result.share_id, result.request)


def _consumed(value: object, driver: str, path: str, notes: Notes) -> dict[str, str] | None:
    if value is None:
        return None
    return {qualified(key, driver): amount for key, amount in notes.quantities(value, path).items()}


def _tolerations(value: object, path: str, notes: Notes) -> tuple[dict[str, str], ...]:
    tolerations = []
    for _, item in notes.objects(value, path):
        tolerations.append(
            {
                key: str(item[key])
                for key in ("key", "operator", "value", "effect", "tolerationSeconds")
                if isinstance(item.get(key), str | int) and not isinstance(item.get(key), bool)
            }
        )
    return tuple(sorted(tolerations, key=lambda toleration: sorted(toleration.items())))


def _consumers(value: object, notes: Notes) -> tuple[Consumer, ...]:
    consumers = []
    for path, item in notes.objects(value, "status.reservedFor"):
        consumers.append(
            Consumer(
                resource=notes.name(item, "resource", path),
                name=notes.name(item, "name", path),
                uid=notes.name(item, "uid", path),
                api_group=notes.name(item, "apiGroup", path),
            )
        )
    return tuple(sorted(consumers, key=lambda consumer: (consumer.uid, consumer.resource, consumer.name)))


def _conditions(value: object, notes: Notes) -> tuple[str, ...]:
    conditions = set()
    for path, item in notes.objects(value, "status.devices"):
        device = "/".join(notes.text(item, key, path) for key in ("driver", "pool", "device"))
        for at, condition in notes.objects(item.get("conditions"), f"{path}.conditions"):
            kind, state = notes.text(condition, "type", at), notes.text(condition, "status", at)
            conditions.add(f"{device}/{kind}={state}:{notes.text(condition, 'reason', at)}")
    return tuple(sorted(conditions))
