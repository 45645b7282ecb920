"""A Pod: the allow-listed part for the ledger, and what it says of devices (KEP-4680).

Health is read from regular, init and ephemeral container statuses alike, although kubelets up to 1.37 fill only the first
(kubernetes/kubernetes#139940). This module must not attribute a word to a DRA device: that takes the claim.
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import msgspec

from ingest.observe.allocatable import read_pod_entries
from ingest.observe.fields import (
    OWN_DOMAIN,
    Notes,
    controller_of,
    fingerprint,
    is_int64,
    read_identity,
    section,
)
from sickbay.facts import ClaimReference, Container, Health, PodClaim, PodObserved

#: A device plugin's ids are at most 63 characters by the API's comment, a DRA triple at most 63 + 253 + 63 and two slashes.
MAX_DEVICE_ID_BYTES: Final = 1024

_encode: Final = msgspec.json.Encoder().encode
_ABILITY: Final = OWN_DOMAIN + "ability"
_TOPOLOGY: Final = OWN_DOMAIN + "topology"
_ABILITIES: Final = ("checkpoint", "restartable", "neither")
_TOPOLOGIES: Final = ("whole", "shardable")
_STATUS_LISTS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
#: Phases in which a Pod says nothing new.
TERMINAL: Final = ("Succeeded", "Failed")


class DeviceReport(msgspec.Struct, frozen=True, gc=False, order=True):
    """One ``allocatedResourcesStatus[].resources[]`` entry as it came, and the container that has it."""

    #: A device plugin's resource name, or ``claim:<claim>[/<request>]``.
    name: str
    resource_id: str
    container: str
    #: ``None`` when the word is absent.
    health_raw: str | None = None
    message: str | None = None


class PodObservation(msgspec.Struct, frozen=True):
    """A Pod as one object shows it."""

    fact: PodObserved
    #: Every report, sorted: the order of lists means nothing (kubelet builds them from Go maps).
    reports: tuple[DeviceReport, ...]
    #: Succeeded or Failed: what it says of devices is frozen.
    terminal: bool
    #: ``path: reason`` of reports that could not be used at all.
    unusable: tuple[str, ...]


def health_word(raw: str | None) -> Health:
    """Return the word as one of the three; what is absent, new or misspelt is Unknown and never Healthy."""
    return cast("Health", raw) if raw in {"Healthy", "Unhealthy"} else "Unknown"


def pod_fingerprint(obj: dict[str, Any]) -> bytes:
    """Return a fingerprint of every raw part that ``observe_pod`` reads besides the identity.

    It is the cheap way past the many updates of a Pod that concern nobody here. Raises what a malformed object makes of it
    as ObjectError; ``observe_pod`` then names the place.
    """
    spec, status = section(obj, "spec", "Pod"), section(obj, "status", "Pod")
    metadata = obj["metadata"]
    statuses = []
    for name in _STATUS_LISTS:
        listed = status.get(name)
        statuses.append(
            [
                (
                    item.get("name"),
                    _unordered(item.get("allocatedResourcesStatus")),
                    item.get("allocatedResources"),
                    item.get("resources"),
                )
                if isinstance(item, dict)
                else item
                for item in listed
            ]
            if isinstance(listed, list)
            else listed
        )
    return fingerprint((
        spec.get("nodeName"),
        _shape(spec.get("containers")),
        _shape(spec.get("initContainers")),
        spec.get("resourceClaims"),
        spec.get("overhead"),
        spec.get("resources"),
        spec.get("priority"),
        status.get("phase"),
        statuses,
        status.get("resources"),
        status.get("allocatedResources"),
        status.get("resourceClaimStatuses"),
        status.get("extendedResourceClaimStatus"),
        status.get("nodeAllocatableResourceClaimStatuses"),
        status.get("additionalNodeAllocatableResources"),
        _resize(status),
        metadata.get("deletionTimestamp"),
        metadata.get("ownerReferences"),
        _declared(metadata, _ABILITY),
        _declared(metadata, _TOPOLOGY),
    ))  # fmt: skip


def _unordered(told: object) -> object:
    """Put what the kubelet lists in the order of a Go map into one order; anything malformed stays as it is."""
    if not isinstance(told, list) or not all(isinstance(entry, dict) for entry in told):
        return told
    entries = []
    for entry in told:
        resources = entry.get("resources")
        if resources is not None and not isinstance(resources, list):
            return told
        entries.append((
            msgspec.Raw(_encode(entry.get("name"))),
            None if resources is None else [msgspec.Raw(r) for r in sorted(map(_encode, resources))],
        ))  # fmt: skip
    return sorted(entries, key=lambda entry: bytes(entry[0]))


def _shape(containers: object) -> object:
    """Leave out of a container list what is never kept: images, commands, environment, mounts."""
    if not isinstance(containers, list):
        return containers
    return [
        (item.get("name"), item.get("resources"), item.get("restartPolicy"))
        if isinstance(item, dict)
        else item
        for item in containers
    ]


def observe_pod(obj: dict[str, Any], *, at_ms: int = 0, epoch: int = 0) -> PodObservation:
    """Read a Pod.

    Raises ObjectError when its identity is missing or ``spec`` or ``status`` is no object; every other illegal value is
    refused alone.
    """
    identity = read_identity(obj, "Pod", namespaced=True)
    where = f"Pod {identity.namespace}/{identity.name}"
    spec, status, metadata = section(obj, "spec", where), section(obj, "status", where), obj["metadata"]
    notes, unusable = Notes(), Notes()
    by_container: dict[str, dict[str, Any]] = {}
    reports: list[DeviceReport] = []
    for list_name in _STATUS_LISTS:
        for path, item in notes.objects(status.get(list_name), f"status.{list_name}"):
            name = notes.name(item, "name", path)
            by_container.setdefault(name, item)
            if item.get("allocatedResourcesStatus"):
                _read_reports(item["allocatedResourcesStatus"], name, path, reports, unusable)
    extended = notes.mapping(status.get("extendedResourceClaimStatus"), "status.extendedResourceClaimStatus")
    extended_claim = notes.name(extended, "resourceClaimName", "status.extendedResourceClaimStatus") or None
    pod_level = notes.mapping(spec.get("resources"), "spec.resources").get("requests")
    actuated = notes.mapping(status.get("resources"), "status.resources").get("requests")
    allocated = status.get("allocatedResources")
    phase = notes.text(status, "phase", "status")
    fact = PodObserved(
        node=notes.name(spec, "nodeName", "spec"),
        observed_at_ms=at_ms,
        epoch=epoch,
        rv=identity.rv,
        pod_uid=identity.uid,
        namespace=identity.namespace,
        pod=identity.name,
        phase=phase,
        deletion_requested_at_ms=notes.time_ms(metadata, "deletionTimestamp", "metadata"),
        containers=_containers(spec, by_container, notes),
        claims=_claims(spec, status, notes),
        extended_claim=extended_claim,
        overhead=notes.quantities(spec.get("overhead"), "spec.overhead"),
        pod_level_requests=None
        if pod_level is None
        else notes.quantities(pod_level, "spec.resources.requests"),
        pod_level_actuated=None
        if actuated is None
        else notes.quantities(actuated, "status.resources.requests"),
        pod_level_allocated=None
        if allocated is None
        else notes.quantities(allocated, "status.allocatedResources"),
        node_allocatable=read_pod_entries(status, extended_claim, notes),
        resize=_resize(status),
        ability=cast(
            "Literal['checkpoint', 'restartable', 'neither', '']",
            _choice(metadata, _ABILITY, _ABILITIES, notes),
        ),
        topology=cast("Literal['whole', 'shardable', '']", _choice(metadata, _TOPOLOGY, _TOPOLOGIES, notes)),
        owner=_owner(metadata, notes),
        priority=spec["priority"] if is_int64(spec.get("priority")) else 0,
        refused=tuple(sorted(notes.refused)),
    )
    return PodObservation(
        fact=fact,
        reports=tuple(sorted(reports, key=_report_order)),
        terminal=phase in TERMINAL,
        unusable=tuple(unusable.refused),
    )


def _report_order(report: DeviceReport) -> tuple[str, str, str, str, str]:
    return (report.name, report.resource_id, report.container, report.health_raw or "", report.message or "")


def _read_reports(
    value: object, container: str, path: str, reports: list[DeviceReport], notes: Notes
) -> None:
    for entry_path, entry in notes.objects(value, f"{path}.allocatedResourcesStatus"):
        name = notes.name(entry, "name", entry_path)
        if not name:
            notes.refuse(f"{entry_path}.name", "missing, so its devices cannot be named")
            continue
        for at, item in notes.objects(entry.get("resources"), f"{entry_path}.resources"):
            resource_id = notes.text(item, "resourceID", at)
            size = len(resource_id.encode())
            if not 0 < size <= MAX_DEVICE_ID_BYTES:
                notes.refuse(
                    f"{at}.resourceID", f"has {size} bytes; a device id has 1 to {MAX_DEVICE_ID_BYTES}"
                )
                continue
            health, message = item.get("health"), item.get("message")
            if health is not None and not isinstance(health, str):
                notes.refuse(f"{at}.health", "not a text; read as absent, which is Unknown")
                health = None
            reports.append(
                DeviceReport(
                    name, resource_id, container, health, message if isinstance(message, str) else None
                )
            )


def _containers(
    spec: dict[str, Any], by_container: dict[str, dict[str, Any]], notes: Notes
) -> tuple[Container, ...]:
    """Return init containers in their order, which their peak depends on, then the others by name."""
    init = [
        _container(item, path, by_container, notes, init=True)
        for path, item in notes.objects(spec.get("initContainers"), "spec.initContainers")
    ]
    regular = [
        _container(item, path, by_container, notes, init=False)
        for path, item in notes.objects(spec.get("containers"), "spec.containers")
    ]
    regular.sort(key=lambda container: container.name)
    return (*init, *regular)


def _container(
    item: dict[str, Any], path: str, by_container: dict[str, dict[str, Any]], notes: Notes, *, init: bool
) -> Container:
    name = notes.name(item, "name", path)
    resources = notes.mapping(item.get("resources"), f"{path}.resources")
    status = by_container.get(name, {})
    actuated = notes.mapping(status.get("resources"), f"status of {name}: resources").get("requests")
    allocated = status.get("allocatedResources")
    return Container(
        name=name,
        init=init,
        restartable=init and item.get("restartPolicy") == "Always",
        requests=notes.quantities(resources.get("requests"), f"{path}.resources.requests"),
        actuated=None
        if actuated is None
        else notes.quantities(actuated, f"status of {name}: resources.requests"),
        allocated=None
        if allocated is None
        else notes.quantities(allocated, f"status of {name}: allocatedResources"),
        claims=tuple(
            sorted(
                (
                    ClaimReference(
                        name=notes.name(claim, "name", at), request=notes.name(claim, "request", at)
                    )
                    for at, claim in notes.objects(resources.get("claims"), f"{path}.resources.claims")
                ),
                key=lambda claim: (claim.name, claim.request),
            )
        ),
    )


def _claims(spec: dict[str, Any], status: dict[str, Any], notes: Notes) -> tuple[PodClaim, ...]:
    """Return pod-local claim names with the object's name, from the spec or from the status that the controller writes."""
    recorded = {}
    for path, item in notes.objects(status.get("resourceClaimStatuses"), "status.resourceClaimStatuses"):
        recorded[notes.name(item, "name", path)] = notes.name(item, "resourceClaimName", path) or None
    claims = []
    for path, item in notes.objects(spec.get("resourceClaims"), "spec.resourceClaims"):
        name = notes.name(item, "name", path)
        claims.append(
            PodClaim(name=name, claim=notes.name(item, "resourceClaimName", path) or recorded.get(name))
        )
    return tuple(sorted(claims, key=lambda claim: claim.name))


def _resize(status: dict[str, Any]) -> str:
    """Return why a resize waits: the reason of condition PodResizePending (1.33 on), else ``status.resize`` (before)."""
    conditions = status.get("conditions")
    if isinstance(conditions, list):
        for condition in conditions:
            if (
                isinstance(condition, dict)
                and condition.get("type") == "PodResizePending"
                and condition.get("status") == "True"
            ):
                reason = condition.get("reason")
                return reason if isinstance(reason, str) else ""
    before = status.get("resize")
    return before if isinstance(before, str) else ""


def _declared(metadata: dict[str, Any], key: str) -> object:
    """Return what a label, else an annotation, declares under ``key``."""
    for place in ("labels", "annotations"):
        values = metadata.get(place)
        if isinstance(values, dict) and key in values:
            return values[key]
    return None


def _choice(metadata: dict[str, Any], key: str, allowed: tuple[str, ...], notes: Notes) -> str:
    value = _declared(metadata, key)
    if value is None or value in allowed:
        return value or ""
    notes.refuse(f"metadata {key}", f"{str(value)[:64]!a} is none of {', '.join(allowed)}")
    return ""


def _owner(metadata: dict[str, Any], notes: Notes) -> str:
    owner = controller_of(metadata, notes)
    return f"{owner.get('kind', '')}/{owner.get('name', '')}" if owner else ""
