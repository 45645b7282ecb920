"""A glance at one recorded line: which version of which Pod it carries, and a fingerprint of all that is read of it.

Most updates of a cluster are Pods whose read parts did not change. A glance cuts those parts out of the JSON without decoding
the rest; the mirror compares the fingerprint with the one it keeps and passes the frame over. Equal fingerprints mean equal
parts, so nothing can be passed over that reading would have shown. Whatever is no ordinary update of a Pod, or is written in
another spelling than the recording writer's, gets no glance and is read in full.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from ingest.observe.fields import OWN_DOMAIN, read_resource_version
from sickbay.errors import InputError
from sickbay.timestamps import parse_time_ms


class Glance(NamedTuple):
    """What a line says before it is read."""

    at_ms: int
    resource: str
    uid: str
    rv: int
    #: Equal to ``pod_fingerprint`` of the decoded object when the line is compact JSON.
    mark: bytes


_ABSENT: Final = Raw(b"null")
_ABILITY: Final = OWN_DOMAIN + "ability"
_TOPOLOGY: Final = OWN_DOMAIN + "topology"


class _Shape(msgspec.Struct, gc=False, rename="camel"):
    """The read parts of an object, under the names of the API."""


class _Metadata(_Shape, gc=False):
    uid: str
    name: str
    namespace: str
    resource_version: str
    deletion_timestamp: Raw = _ABSENT
    owner_references: Raw = _ABSENT
    labels: dict[str, Raw] | None = None
    annotations: dict[str, Raw] | None = None


class _Container(_Shape, gc=False):
    name: Raw = _ABSENT
    resources: Raw = _ABSENT
    restart_policy: Raw = _ABSENT


class _Spec(_Shape, gc=False):
    node_name: Raw = _ABSENT
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: Raw = _ABSENT
    overhead: Raw = _ABSENT
    resources: Raw = _ABSENT
    priority: Raw = _ABSENT


class _ResourceStatus(_Shape, gc=False):
    name: Raw = _ABSENT
    resources: list[Raw] | None = None


class _ContainerStatus(_Shape, gc=False):
    name: Raw = _ABSENT
    allocated_resources_status: list[_ResourceStatus] | None = None
    allocated_resources: Raw = _ABSENT
    resources: Raw = _ABSENT


class _Condition(_Shape, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""


class _Status(_Shape, gc=False):
    phase: Raw = _ABSENT
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    ephemeral_container_statuses: list[_ContainerStatus] | None = None
    resources: Raw = _ABSENT
    allocated_resources: Raw = _ABSENT
    resource_claim_statuses: Raw = _ABSENT
    extended_resource_claim_status: Raw = _ABSENT
    node_allocatable_resource_claim_statuses: Raw = _ABSENT
    additional_node_allocatable_resources: Raw = _ABSENT
    conditions: list[_Condition] | None = None
    resize: str = ""


class _Pod(_Shape, gc=False):
    metadata: _Metadata
    spec: _Spec
    status: _Status


class _Update(msgspec.Struct, gc=False, tag_field="type", tag="MODIFIED"):
    at: str
    resource: str
    object: _Pod


_decode: Final = msgspec.json.Decoder(_Update).decode
_encode: Final = msgspec.json.Encoder().encode


def glance(line: bytes) -> Glance | None:
    """Return the glance at a line of a recording in the own format, ``None`` for one that must be read in full."""
    if b'"MODIFIED"' not in line or b'"pods"' not in line:
        return None
    try:
        update = _decode(line)
        metadata = update.object.metadata
        if update.resource != "pods" or not (metadata.uid and metadata.name and metadata.namespace):
            return None
        return Glance(
            parse_time_ms(update.at),
            "pods",
            metadata.uid,
            read_resource_version(metadata.resource_version, ""),
            _mark(update.object),
        )
    except (msgspec.MsgspecError, UnicodeError, RecursionError, InputError):
        # the full reading names what is wrong
        return None


def _mark(pod: _Pod) -> bytes:
    """Return what ``ingest.observe.pods.pod_fingerprint`` returns for the decoded object."""
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    parts = (
        spec.node_name,
        _shape(spec.containers),
        _shape(spec.init_containers),
        spec.resource_claims,
        spec.overhead,
        spec.resources,
        spec.priority,
        status.phase,
        (
            _told(status.container_statuses),
            _told(status.init_container_statuses),
            _told(status.ephemeral_container_statuses),
        ),
        status.resources,
        status.allocated_resources,
        status.resource_claim_statuses,
        status.extended_resource_claim_status,
        status.node_allocatable_resource_claim_statuses,
        status.additional_node_allocatable_resources,
        _resize(status),
        metadata.deletion_timestamp,
        metadata.owner_references,
        _declared(metadata, _ABILITY),
        _declared(metadata, _TOPOLOGY),
    )
    return blake2b(_encode(parts), digest_size=16).digest()


def _shape(containers: list[_Container] | None) -> list[tuple[Raw, Raw, Raw]] | None:
    return None if containers is None else [(c.name, c.resources, c.restart_policy) for c in containers]


def _told(statuses: list[_ContainerStatus] | None) -> list[tuple[object, ...]] | None:
    if statuses is None:
        return None
    return [
        (s.name, _unordered(s.allocated_resources_status), s.allocated_resources, s.resources)
        for s in statuses
    ]


def _unordered(told: list[_ResourceStatus] | None) -> list[tuple[Raw, list[Raw] | None]] | None:
    """Put what the kubelet lists in the order of a Go map into one order."""
    if told is None:
        return None
    entries = [(t.name, None if t.resources is None else sorted(t.resources, key=bytes)) for t in told]
    return sorted(entries, key=lambda entry: bytes(entry[0])) if len(entries) > 1 else entries


def _resize(status: _Status) -> str:
    for condition in status.conditions or ():
        if condition.type == "PodResizePending" and condition.status == "True":
            return condition.reason
    return status.resize


def _declared(metadata: _Metadata, key: str) -> Raw | None:
    for values in (metadata.labels, metadata.annotations):
        if values and key in values:
            return values[key]
    return None
