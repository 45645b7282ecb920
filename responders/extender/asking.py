"""What a Pod asks for, read from the Pod as the scheduler sends it or from a fact: exact, and the least that is needed.

The sums are those of Kubernetes (``k8s.io/component-helpers`` ``resource/helpers.go``, v0.36 and v0.37): the larger of containers
and sidecars together and the init peak (KEP-753), Pod-level requests in the place of cpu, memory and hugepages (KEP-2837),
overhead once. A Pod that waits to be scheduled has no status, so what in-place resize adds to these rules has no part here; what a
claim adds is not known before a device is chosen. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from sickbay.errors import InputError, QuantityError
from sickbay.facts import PodObserved
from sickbay.quantity import NANO_PER_MILLI, NANO_PER_UNIT, parse, parse_json_value

_NOTHING: Final[Mapping[str, int]] = {}


class Asked(NamedTuple):
    """What one Pod asks of its node."""

    #: ``namespace/name``, for the log.
    pod: str
    #: Extended resource to whole devices, those that are more than none.
    extended: Mapping[str, int]
    #: Whether it names resource claims.
    has_claims: bool
    #: cpu, memory, ephemeral-storage and hugepages in nano-units, rounded up to what the scheduler counts in.
    own_nano: Mapping[str, int]


class _Resources(msgspec.Struct):
    requests: dict[str, str | int] | None = None


class _Container(msgspec.Struct, rename="camel"):
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: dict[str, str | int] | None = None
    resources: _Resources | None = None
    resource_claims: list[msgspec.Raw] | None = None


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec


_decode: Final = msgspec.json.Decoder(_Pod).decode


def is_extended(resource: str) -> bool:
    """Whether a resource is an extended one (``v1helper.IsExtendedResourceName``): qualified, and not Kubernetes' own."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def is_node_resource(resource: str) -> bool:
    """Whether the ledger keeps a resource (docs/ledger.md)."""
    return resource in ("cpu", "memory", "ephemeral-storage") or resource.startswith("hugepages-")


def read_pod(data: bytes | msgspec.Raw) -> Asked:
    """Read a Pod. Raises InputError for what is none."""
    try:
        pod = _decode(data)
        spec = pod.spec
        total = footprint(
            [
                *((True, each.restart_policy == "Always", _nanos(each.resources)) for each in spec.init_containers or ()),
                *((False, False, _nanos(each.resources)) for each in spec.containers or ()),
            ]
        )  # fmt: skip
        replaced = _nanos(spec.resources)
        total.update(
            {r: nano for r, nano in replaced.items() if r != "ephemeral-storage" and is_node_resource(r)}
        )
        for resource, nano in _read(spec.overhead or {}).items():
            total[resource] = total.get(resource, 0) + nano
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, QuantityError) as error:
        raise InputError(f"not a Pod: {error}") from error
    return Asked(
        pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
        extended=_devices(total),
        has_claims=bool(spec.resource_claims),
        own_nano={r: _ceiling(r, nano) for r, nano in total.items() if nano > 0 and is_node_resource(r)},
    )


def devices_of(pod: PodObserved) -> Mapping[str, int]:
    """Return extended resource to whole devices that a Pod asks for. Raises QuantityError for what no fact of ours has."""
    if not any("/" in resource for each in pod.containers for resource in each.requests):
        return {}
    return _devices(
        footprint(
            (each.init, each.restartable, {r: parse(text).nano for r, text in each.requests.items() if is_extended(r)})
            for each in pod.containers
        )
    )  # fmt: skip


def footprint(containers: Iterable[tuple[bool, bool, Mapping[str, int]]]) -> dict[str, int]:
    """Return what containers take: ``(init, restartable, amounts)``, the init containers first and in their order."""
    total: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for init, restartable, amounts in containers:
        if init and not restartable:
            for resource in {*sidecars, *amounts}:
                during = sidecars.get(resource, 0) + amounts.get(resource, 0)
                peak[resource] = max(peak.get(resource, during), during)
            continue
        for resource, nano in amounts.items():
            total[resource] = total.get(resource, 0) + nano
            if init:
                sidecars[resource] = sidecars.get(resource, 0) + nano
    for resource, nano in peak.items():
        total[resource] = max(total.get(resource, nano), nano)
    return total


def _nanos(resources: _Resources | None) -> Mapping[str, int]:
    return _NOTHING if resources is None or not resources.requests else _read(resources.requests)


def _read(texts: Mapping[str, str | int]) -> dict[str, int]:
    return {resource: parse_json_value(text, path=resource).nano for resource, text in texts.items()}


def _devices(total: Mapping[str, int]) -> dict[str, int]:
    return {r: -(-nano // NANO_PER_UNIT) for r, nano in total.items() if nano > 0 and is_extended(r)}


def _ceiling(resource: str, nano: int) -> int:
    unit = NANO_PER_MILLI if resource == "cpu" else NANO_PER_UNIT
    return -(-nano // unit) * unit
