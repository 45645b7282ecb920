"""Node-allocatable data (KEP-5517) of Pods and devices, in every shape that was served, chosen by the keys present.

========  ===========================================  ====================================================
          Pod status                                   device of a ResourceSlice
========  ===========================================  ====================================================
1.36      ``nodeAllocatableResourceClaimStatuses[]``,  ``nodeAllocatableResourceMappings``:
          entry with ``resources``                     ``capacityKey``, ``allocationMultiplier``
1.37      same list, entry with ``mapping`` or         ``nodeAllocatableResources``:
          ``overhead``                                 ``mapping``, ``overhead``
1.38-dev  ``additionalNodeAllocatableResources[]``     as 1.37
========  ===========================================  ====================================================

What is not understood whole is ``unknown`` and names the fields; it is never read as zero. Entries of the 1.38 development
shape are read where their members are those of 1.37, and still marked ``unknown``, because that shape may change.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from ingest.observe.fields import Notes, qualified
from sickbay.facts import NodeAllocatableEntry

Shape: TypeAlias = Literal["1.36", "1.37", "unknown"]

#: The scheduler's stand-in for a claim that it has not created yet; it leaked in 1.37.0-rc.0 (kubernetes/kubernetes#141467).
PLACEHOLDER_CLAIM: Final = "<extended-resources>"

_ENTRY: Final = frozenset({"resourceClaimName", "containers", "resources", "mapping", "overhead"})
_ENTRY_138: Final = frozenset({"source", "containers", "mapping", "overhead"})
_MAPPED: Final = frozenset({"name", "quantity"})
_OVERHEAD: Final = frozenset({"name", "perPod", "perContainer"})
_DEVICE_136: Final = frozenset({"capacityKey", "allocationMultiplier"})
_DEVICE_137: Final = frozenset({"mapping", "overhead"})
_DEVICE_137_MAPPING: Final = frozenset({"capacityKey", "capacityMultiplier", "deviceMultiplier"})
_DEVICE_137_OVERHEAD: Final = frozenset({"perPod", "perContainer"})


def read_pod_entries(
    status: dict[str, Any], extended_claim: str | None, notes: Notes
) -> tuple[NodeAllocatableEntry, ...] | None:
    """Return the entries of a Pod's status, ``None`` when neither list is there (nothing known).

    An explicit empty list is ``()``: the scheduler took its charge back. The placeholder claim is read as ``extended_claim``
    where that is known.
    """
    served = status.get("nodeAllocatableResourceClaimStatuses")
    renamed = status.get("additionalNodeAllocatableResources")
    if served is None and renamed is None:
        return None
    entries = []
    for path, raw in notes.objects(served, "status.nodeAllocatableResourceClaimStatuses"):
        claim = notes.name(raw, "resourceClaimName", path)
        if claim == PLACEHOLDER_CLAIM and extended_claim:
            claim = extended_claim
        entries.append(_entry(raw, claim, path, _ENTRY, notes))
    for path, raw in notes.objects(renamed, "status.additionalNodeAllocatableResources"):
        source = notes.mapping(raw.get("source"), f"{path}.source")
        entries.append(
            _entry(raw, notes.name(source, "name", f"{path}.source"), path, _ENTRY_138, notes, renamed=True)
        )
    return tuple(sorted(entries, key=lambda entry: (entry.claim, entry.containers, repr(entry))))


def _entry(
    raw: dict[str, Any], claim: str, path: str, known: frozenset[str], notes: Notes, *, renamed: bool = False
) -> NodeAllocatableEntry:
    own = Notes()
    own.unread(raw, known, path)
    shape: Shape = "unknown"
    mapping: dict[str, str] = {}
    per_pod: dict[str, str] = {}
    per_container: dict[str, str] = {}
    if raw.get("mapping") is not None or raw.get("overhead") is not None:
        shape = "1.37"
        for at, item in own.objects(raw.get("mapping"), f"{path}.mapping"):
            own.unread(item, _MAPPED, at)
            _add(mapping, item, "quantity", at, own)
        for at, item in own.objects(raw.get("overhead"), f"{path}.overhead"):
            if own.unread(item, _OVERHEAD, at) and not _OVERHEAD.intersection(item) - {"name"}:
                continue
            _add(per_pod, item, "perPod", at, own)
            _add(per_container, item, "perContainer", at, own)
        if raw.get("resources") is not None:
            shape = "unknown"
            own.unknown.append(f"{path}.resources (beside mapping or overhead)")
    elif raw.get("resources") is not None:
        shape = "1.36"
        mapping = own.quantities(raw["resources"], f"{path}.resources")
    else:
        # 1.37 reads no more of what the scheduler of 1.36 wrote: it counts nothing for the claim, and that is what is recorded
        shape = "1.37"
    if renamed:
        shape = "unknown"
        own.unknown.append(f"{path} (shape of 1.38 development)")
    notes.refused.extend(own.refused)
    return NodeAllocatableEntry(
        claim=claim,
        shape=shape,
        containers=tuple(sorted(own.texts(raw.get("containers"), f"{path}.containers"))),
        mapping=mapping,
        per_pod=per_pod,
        per_container=per_container,
        unknown_fields=tuple(sorted({*own.unknown, *own.refused})),
    )


def _add(amounts: dict[str, str], item: dict[str, Any], member: str, path: str, notes: Notes) -> None:
    """Keep one amount under the entry's resource name; a second one under a name is refused and never added up."""
    if item.get(member) is None:
        return
    name = notes.name(item, "name", path)
    if not name:
        notes.refuse(f"{path}.name", "missing, so the amount belongs to no resource")
    elif name in amounts:
        notes.refuse(f"{path}.{member}", f"a second amount for {name}")
    else:
        text = notes.quantity(item[member], f"{path}.{member}")
        if text is not None:
            amounts[name] = text


def read_device(
    device: dict[str, Any], driver: str, path: str, notes: Notes
) -> tuple[Shape | None, dict[str, dict[str, str]]]:
    """Return the shape and, by node resource name, the members of a device's node-allocatable data.

    Members keep their wire names (``capacityKey``, ``allocationMultiplier``, ``capacityMultiplier``, ``deviceMultiplier``,
    ``perPod``, ``perContainer``); ``capacityKey`` is qualified. An absent multiplier stays absent: the API's default is 1.
    ``capacityKeySpelling`` is the key as it came, where the device has that capacity only under the other spelling of its name:
    the scheduler of 1.36 compares the texts and does not find it (reference kubernetes, 3.3).
    """
    old, new = device.get("nodeAllocatableResourceMappings"), device.get("nodeAllocatableResources")
    if old is None and new is None:
        return None, {}
    own = Notes()
    members: dict[str, dict[str, str]] = {}
    capacity = device.get("capacity")
    named = frozenset(capacity) if isinstance(capacity, dict) else frozenset()
    understood = old is None or new is None
    if new is not None:
        at = f"{path}.nodeAllocatableResources"
        for resource, raw in own.mapping(new, at).items():
            where = f"{at}[{resource}]"
            entry = own.mapping(raw, where)
            mapping = own.mapping(entry.get("mapping"), f"{where}.mapping")
            overhead = own.mapping(entry.get("overhead"), f"{where}.overhead")
            own.unread(entry, _DEVICE_137, where)
            own.unread(mapping, _DEVICE_137_MAPPING, f"{where}.mapping")
            own.unread(overhead, _DEVICE_137_OVERHEAD, f"{where}.overhead")
            members[resource] = _members({**mapping, **overhead}, driver, named, where, own)
            if not members[resource]:
                own.unknown.append(f"{where} (no amount)")
    else:
        at = f"{path}.nodeAllocatableResourceMappings"
        for resource, raw in own.mapping(old, at).items():
            where = f"{at}[{resource}]"
            entry = own.mapping(raw, where)
            if not own.unread(entry, _DEVICE_136, where):
                members[resource] = _members(entry, driver, named, where, own)
    if not understood:
        own.unknown.append(f"{path}.nodeAllocatableResourceMappings (beside nodeAllocatableResources)")
    shape: Shape = "1.36" if new is None else "1.37"
    if own.unknown or own.refused:
        shape = "unknown"
    notes.unknown.extend(own.unknown)
    notes.refused.extend(own.refused)
    return shape, members


def _members(
    raw: dict[str, Any], driver: str, named: frozenset[str], path: str, notes: Notes
) -> dict[str, str]:
    read: dict[str, str] = {}
    for name in ("allocationMultiplier", "capacityMultiplier", "deviceMultiplier", "perPod", "perContainer"):
        if raw.get(name) is not None:
            text = notes.quantity(raw[name], f"{path}.{name}")
            if text is not None:
                read[name] = text
    key = notes.text(raw, "capacityKey", path)
    if key:
        read["capacityKey"] = qualified(key, driver)
        if key not in named and read["capacityKey"] in {qualified(name, driver) for name in named}:
            read["capacityKeySpelling"] = key
    return read
