"""A Pod as a mover needs it, read from the API server's JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from responders.moves.declared import Declared, read_declared

#: Phases in which a Pod has ended by itself.
TERMINAL = ("Succeeded", "Failed")


class Owner(msgspec.Struct, frozen=True):
    """The controller of a Pod: who makes another when it is evicted."""

    api_version: str
    kind: str
    name: str
    uid: str


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """One Pod, as of ``version``."""

    uid: str
    name: str
    namespace: str
    version: str
    node: str = ""
    phase: str = ""
    #: It is to be deleted.
    deleting: bool = False
    ready: bool = False
    #: Server's time, RFC 3339 in whole seconds: texts of one length and zone, so their order is that of time.
    created_at: str = ""
    ip: str = ""
    host_network: bool = False
    owner: Owner | None = None
    containers: tuple[str, ...] = ()
    #: Names of the ResourceClaims that it uses, and whether one is not made yet.
    claims: tuple[str, ...] = ()
    claims_missing: bool = False
    #: Devices of device plugins that its status tells, as device ids; and those of any kind that it reports as Unhealthy.
    plugin_devices: tuple[str, ...] = ()
    unhealthy: tuple[str, ...] = ()
    #: Why it is not scheduled, or not ready.
    waits_for: str = ""
    declared: Declared = Declared()

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""
        return self.phase in TERMINAL

    @property
    def place(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"


def read_pod(obj: Mapping[str, Any]) -> Pod | None:
    """Read a Pod; ``None`` for an object that is none."""
    metadata, spec, status = _map(obj, "metadata"), _map(obj, "spec"), _map(obj, "status")
    uid, name = _text(metadata, "uid"), _text(metadata, "name")
    if not uid or not name:
        return None
    claims, missing = _claims(spec, status)
    devices, unhealthy = _devices(status)
    conditions = {_text(each, "type"): each for each in _maps(status, "conditions")}
    ready = _text(conditions.get("Ready", {}), "status") == "True"
    return Pod(
        uid=uid,
        name=name,
        namespace=_text(metadata, "namespace"),
        version=_text(metadata, "resourceVersion"),
        node=_text(spec, "nodeName"),
        phase=_text(status, "phase"),
        deleting=bool(metadata.get("deletionTimestamp")),
        ready=ready,
        created_at=_text(metadata, "creationTimestamp"),
        ip=_text(status, "podIP"),
        host_network=spec.get("hostNetwork") is True,
        owner=_owner(metadata),
        containers=tuple(_text(each, "name") for each in _maps(spec, "containers")),
        claims=claims,
        claims_missing=missing,
        plugin_devices=devices,
        unhealthy=unhealthy,
        waits_for="" if ready else _waits_for(conditions),
        declared=read_declared(metadata),
    )


def _owner(metadata: Mapping[str, Any]) -> Owner | None:
    for each in _maps(metadata, "ownerReferences"):
        if each.get("controller") is True and _text(each, "uid"):
            return Owner(
                _text(each, "apiVersion"), _text(each, "kind"), _text(each, "name"), _text(each, "uid")
            )
    return None


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    made = {
        _text(each, "name"): _text(each, "resourceClaimName")
        for each in _maps(status, "resourceClaimStatuses")
    }
    found: set[str] = set()
    missing = False
    for each in _maps(spec, "resourceClaims"):
        # a status without a name says that the template needed no claim (KEP-4381)
        local = _text(each, "name")
        claim = _text(each, "resourceClaimName") or made.get(local, "")
        missing = missing or (not claim and local not in made)
        found |= {claim} if claim else set()
    extended = _text(_map(status, "extendedResourceClaimStatus"), "resourceClaimName")
    return tuple(sorted(found | ({extended} if extended else set()))), missing


def _devices(status: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    devices, unhealthy = set(), set()
    for listed in ("containerStatuses", "initContainerStatuses"):
        for container in _maps(status, listed):
            for entry in _maps(container, "allocatedResourcesStatus"):
                name = _text(entry, "name")
                for each in _maps(entry, "resources"):
                    device = _text(each, "resourceID")
                    if not name.startswith("claim:"):
                        device = f"plugin:{name}/{device}"
                        devices.add(device)
                    if each.get("health") == "Unhealthy":
                        unhealthy.add(device)
    return tuple(sorted(devices)), tuple(sorted(unhealthy))


def _waits_for(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    for kind in ("PodScheduled", "Ready"):
        condition = conditions.get(kind, {})
        if condition and condition.get("status") != "True":
            told = (kind, _text(condition, "reason"), _text(condition, "message"))
            return " ".join(" ".join(part for part in told if part).split())[:200]
    return ""


def claim_devices(claim: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the device ids that a ResourceClaim was allocated, ``None`` while it has no allocation."""
    status = _map(claim, "status")
    allocation = status.get("allocation")
    if not isinstance(allocation, dict):
        return None
    return tuple(
        f"dra:{_text(each, 'driver')}/{_text(each, 'pool')}/{_text(each, 'device')}"
        for each in _maps(_map(allocation, "devices"), "results")
    )


def claim_users(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the uids of the Pods for which a ResourceClaim is reserved."""
    return tuple(
        _text(each, "uid")
        for each in _maps(_map(claim, "status"), "reservedFor")
        if _text(each, "resource") == "pods"
    )


def _map(obj: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = obj.get(key)
    return found if isinstance(found, dict) else {}


def _maps(obj: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = obj.get(key)
    yield from (each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _text(obj: Mapping[str, Any], key: str) -> str:
    found = obj.get(key)
    return found if isinstance(found, str) else ""
