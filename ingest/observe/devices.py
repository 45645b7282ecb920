"""One device of a ResourceSlice, in v1, v1beta2 or v1beta1 (where ``basic`` wraps the body).

An attribute or capacity key without a domain belongs to the driver. This module must not judge: taints and attributes are
kept as they came. The card a partition sits on is named here by what the driver says of it; which device of the pool that
is, is found by ``ingest.diff`` once the pool is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ingest.observe.allocatable import read_device
from ingest.observe.fields import OWN_DOMAIN, Notes, fingerprint, is_int64, qualified, single_node
from ingest.observe.numa import read_numa
from sickbay.facts import DevicePublished, Scalar, Taint
from sickbay.policy import ReadingPolicy

_BODY: Final = frozenset({
    "name", "basic", "attributes", "capacity", "consumesCounters", "nodeName", "nodeSelector", "allNodes", "taints",
    "bindsToNode", "bindingConditions", "bindingFailureConditions", "allowMultipleAllocations",
    "nodeAllocatableResourceMappings", "nodeAllocatableResources",
})  # fmt: skip
_CAPACITY: Final = frozenset({"value", "requestPolicy"})
_POLICY: Final = frozenset({"default", "validValues", "validRange"})
_RANGE: Final = frozenset({"min", "max", "step"})

#: Bare attribute pairs by which drivers name a partition's card: on the partition, and on the card itself.
#: dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin/deviceinfo.go; ROCm/k8s-gpu-dra-driver cmd/gpu-kubeletplugin/discovery.go.
PARENT_ATTRIBUTES: Final = (
    ("parentUUID", "uuid"),
    ("parentDeviceID", "deviceID"),
    ("parentPciAddr", "pciAddr"),
)


class DeviceObservation(msgspec.Struct, frozen=True):
    """A device, and what the pool needs to know of it."""

    fact: DevicePublished
    #: Fingerprint of what the device says, without its slice, generation, version and time.
    digest: bytes
    #: ``(bare attribute on the card, value)`` candidates for the card this partition sits on, best first.
    parents: tuple[tuple[str, str], ...]
    #: ``(bare attribute, value)`` under which this device may be another one's card.
    names: tuple[tuple[str, str], ...]


def observe_device(
    raw: dict[str, Any],
    path: str,
    blank: DevicePublished,
    slice_unknown: tuple[str, ...],
    reading: ReadingPolicy,
) -> tuple[DeviceObservation, Notes]:
    """Read one device into ``blank``, which holds what its slice says: driver, pool, generation, node, version.

    Paths in ``unknown_fields`` name the device, not its place in the list, whose order means nothing. Values that were
    refused stand there too, with the reason.
    """
    notes = Notes()
    driver, name = blank.driver, raw["name"]
    notes.unread(raw, _BODY, path)
    body = raw
    if isinstance(raw.get("basic"), dict):
        body = {**raw, **raw["basic"]}
        notes.unread(raw["basic"], _BODY, f"{path}.basic")
    attributes = _attributes(body.get("attributes"), driver, f"{path}.attributes", notes)
    capacity, policies = _capacity(body.get("capacity"), driver, f"{path}.capacity", notes)
    shape, node_allocatable = read_device(body, driver, path, notes)
    node_name = body.get("nodeName")
    node = (
        blank.node
        or (node_name if isinstance(node_name, str) else "")
        or single_node(body.get("nodeSelector"))
    )
    fact = msgspec.structs.replace(
        blank,
        node=node,
        device_id=f"dra:{driver}/{blank.pool}/{name}",
        device=name,
        attributes=attributes,
        capacity=capacity,
        capacity_policy=policies,
        taints=read_taints(body.get("taints"), f"{path}.taints", notes),
        numa=read_numa(attributes, reading),
        allow_multiple=notes.flag(body, "allowMultipleAllocations", path),
        consumes_counters=_consumed(body.get("consumesCounters"), f"{path}.consumesCounters", notes),
        node_allocatable_shape=shape,
        node_allocatable=node_allocatable,
        binding_conditions=tuple(
            sorted(notes.texts(body.get("bindingConditions"), f"{path}.bindingConditions"))
        ),
        binding_failure_conditions=tuple(
            sorted(notes.texts(body.get("bindingFailureConditions"), f"{path}.bindingFailureConditions"))
        ),
        unknown_fields=tuple(sorted({*slice_unknown, *notes.unknown, *notes.refused})),
    )
    return (
        DeviceObservation(
            fact=fact,
            digest=device_digest(fact),
            parents=_named(attributes, driver, ((parent, own) for parent, own in PARENT_ATTRIBUTES)),
            names=_named(attributes, driver, ((own, own) for _, own in PARENT_ATTRIBUTES)),
        ),
        notes,
    )


def device_digest(fact: DevicePublished) -> bytes:
    """Return a fingerprint of what a device says: without its slice, generation, version and time, and the card it sits on."""
    content = msgspec.structs.replace(
        fact, physical_id=None, slice_uid="", pool_generation=0, observed_at_ms=0, epoch=0, rv=0
    )
    return fingerprint((_sorted_builtins(content),))


_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def _sorted_builtins(fact: DevicePublished) -> msgspec.Raw:
    """Return the canonical JSON, so that the order of JSON members means nothing either."""
    return msgspec.Raw(_encode_sorted(fact))


def _named(
    attributes: dict[str, Scalar | tuple[Scalar, ...]], driver: str, pairs: Any
) -> tuple[tuple[str, str], ...]:
    found = []
    for read, kept in pairs:
        value = attributes.get(f"{driver}/{read}")
        if isinstance(value, str) and value:
            found.append((kept, value))
    return tuple(found)


def _attributes(
    value: object, driver: str, path: str, notes: Notes
) -> dict[str, Scalar | tuple[Scalar, ...]]:
    attributes: dict[str, Scalar | tuple[Scalar, ...]] = {}
    for key, raw in notes.mapping(value, path).items():
        at = f"{path}[{key}]"
        members = notes.mapping(raw, at)
        if len(members) > 1:
            notes.refuse(at, "has more than one value")
            continue
        for member, item in members.items():
            accept = _MEMBERS.get(member)
            if accept is None:
                notes.unknown.append(f"{at}.{member}")
            elif item is None:
                continue
            elif member in _LISTS:
                if isinstance(item, list) and all(accept(part) for part in item):
                    attributes[qualified(key, driver)] = tuple(item)
                else:
                    notes.refuse(f"{at}.{member}", "not a list of such values")
            elif accept(item):
                attributes[qualified(key, driver)] = item
            else:
                notes.refuse(f"{at}.{member}", "not such a value")
    return attributes


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_MEMBERS: Final[dict[str, Callable[[object], bool]]] = {
    "string": _is_text, "version": _is_text, "int": is_int64, "bool": _is_flag,
    "strings": _is_text, "versions": _is_text, "ints": is_int64, "bools": _is_flag,
}  # fmt: skip
_LISTS: Final = frozenset({"strings", "versions", "ints", "bools"})


def _capacity(
    value: object, driver: str, path: str, notes: Notes
) -> tuple[dict[str, str], dict[str, dict[str, str | tuple[str, ...]]]]:
    """Return amounts, and request policies flattened to ``default``, ``validValues``, ``min``, ``max`` and ``step``."""
    capacity: dict[str, str] = {}
    policies: dict[str, dict[str, str | tuple[str, ...]]] = {}
    for key, raw in notes.mapping(value, path).items():
        at, name = f"{path}[{key}]", qualified(key, driver)
        members = notes.mapping(raw, at)
        notes.unread(members, _CAPACITY, at)
        if "value" in members:
            amount = notes.quantity(members["value"], f"{at}.value")
            if amount is not None:
                capacity[name] = amount
        policy = notes.mapping(members.get("requestPolicy"), f"{at}.requestPolicy")
        if policy:
            policies[name] = _request_policy(policy, f"{at}.requestPolicy", notes)
    return capacity, policies


def _request_policy(policy: dict[str, Any], path: str, notes: Notes) -> dict[str, str | tuple[str, ...]]:
    read: dict[str, str | tuple[str, ...]] = {}
    notes.unread(policy, _POLICY, path)
    bounds = notes.mapping(policy.get("validRange"), f"{path}.validRange")
    notes.unread(bounds, _RANGE, f"{path}.validRange")
    for name, raw in (
        ("default", policy.get("default")),
        *((name, bounds.get(name)) for name in sorted(_RANGE)),
    ):
        if raw is not None:
            amount = notes.quantity(raw, f"{path}.{name}")
            if amount is not None:
                read[name] = amount
    if isinstance(policy.get("validValues"), list):
        amounts = (notes.quantity(item, f"{path}.validValues") for item in policy["validValues"])
        read["validValues"] = tuple(amount for amount in amounts if amount is not None)
    return read


def _consumed(value: object, path: str, notes: Notes) -> tuple[tuple[str, str, str], ...]:
    consumed = []
    for at, item in notes.objects(value, path):
        counter_set = notes.name(item, "counterSet", at)
        consumed += read_counters(counter_set, item.get("counters"), f"{at}.counters", notes)
    return tuple(sorted(consumed))


def read_counters(counter_set: str, value: object, path: str, notes: Notes) -> list[tuple[str, str, str]]:
    """Return ``(counter set, counter, amount)`` of a map of counters."""
    counters = []
    for name, raw in notes.mapping(value, path).items():
        members = notes.mapping(raw, f"{path}[{name}]")
        amount = notes.quantity(members.get("value"), f"{path}[{name}].value")
        if amount is not None:
            counters.append((counter_set, name, amount))
    return counters


def read_taints(value: object, path: str, notes: Notes) -> tuple[Taint, ...]:
    """Return device or node taints, sorted, without those this project sets itself (NVIDIA/NVSentinel#1704)."""
    taints = []
    for at, item in notes.objects(value, path):
        key = notes.text(item, "key", at)
        if not key:
            notes.refuse(f"{at}.key", "missing")
        elif not key.startswith(OWN_DOMAIN):
            taints.append(
                Taint(
                    key=key,
                    value=notes.text(item, "value", at),
                    effect=notes.text(item, "effect", at),
                    time_added=notes.text(item, "timeAdded", at) or None,
                )
            )
    return tuple(
        sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect, taint.time_added or ""))
    )
