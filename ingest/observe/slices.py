"""A ResourceSlice: which pool and generation it belongs to, its devices and its counters.

One slice never tells whether its pool is complete or valid; ``ingest.diff`` does, over all slices of the pool. A missing
generation is 0 (google/dranet publishes none); a missing resourceVersion makes the object unusable.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ingest.observe.devices import DeviceObservation, observe_device, read_counters
from ingest.observe.fields import Notes, fingerprint, read_identity, section, single_node
from sickbay.errors import ObjectError
from sickbay.facts import DevicePublished
from sickbay.policy import ReadingPolicy

_SPEC: Final = frozenset({
    "driver", "pool", "nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection", "devices", "sharedCounters",
})  # fmt: skip
_POOL: Final = frozenset({"name", "generation", "resourceSliceCount"})
#: A device name is a DNS label in the API; anything longer is no name.
_MAX_NAME_BYTES: Final = 1024


class SliceObservation(msgspec.Struct, frozen=True):
    """A ResourceSlice as one object shows it."""

    uid: str
    name: str
    rv: int
    driver: str
    pool: str
    generation: int
    #: Slices of this generation that the driver announces; 0 when it is absent, which never makes a complete pool.
    slice_count: int
    #: The one node that the slice names, else "".
    node: str
    devices: tuple[DeviceObservation, ...]
    #: ``(counter set, counter, amount)`` of ``sharedCounters``, sorted.
    counters: tuple[tuple[str, str, str], ...]
    counter_sets: tuple[str, ...]
    unknown_fields: tuple[str, ...]
    #: ``path: reason`` of devices that could not be named, and of values that were refused.
    unusable: tuple[str, ...]


def slice_fingerprint(obj: dict[str, Any]) -> bytes:
    """Return a fingerprint of every raw part that ``observe_slice`` reads besides the identity."""
    return fingerprint((obj.get("spec"), obj["metadata"].get("ownerReferences")))


def observe_slice(
    obj: dict[str, Any], reading: ReadingPolicy | None = None, *, at_ms: int = 0, epoch: int = 0
) -> SliceObservation:
    """Read a ResourceSlice of resource.k8s.io/v1, v1beta2 or v1beta1.

    Raises ObjectError when its identity, its driver or its pool's name is missing or a part that must be an object is not.
    """
    identity = read_identity(obj, "ResourceSlice", namespaced=False)
    where = f"ResourceSlice {identity.name}"
    spec = section(obj, "spec", where)
    pool = section(spec, "pool", f"{where}: spec")
    notes = Notes()
    notes.unread(spec, _SPEC, "spec")
    notes.unread(pool, _POOL, "spec.pool")
    driver, pool_name = notes.name(spec, "driver", "spec"), notes.name(pool, "name", "spec.pool")
    if not driver or not pool_name:
        raise ObjectError(
            f"{where}: spec.driver and spec.pool.name must name the pool that the slice belongs to"
        )
    generation = notes.whole(pool, "generation", "spec.pool")
    node = notes.name(spec, "nodeName", "spec") or single_node(spec.get("nodeSelector"))
    unknown = tuple(notes.unknown)
    blank = DevicePublished(
        node=node,
        observed_at_ms=at_ms,
        epoch=epoch,
        rv=identity.rv,
        device_id="",
        driver=driver,
        pool=pool_name,
        device="",
        slice_uid=identity.uid,
        pool_generation=generation,
        node_uid=_node_uid(obj["metadata"], notes),
    )
    devices = []
    reading = reading or ReadingPolicy()
    unknown_fields = list(unknown)
    for path, raw in notes.objects(spec.get("devices"), "spec.devices"):
        name = raw.get("name")
        if not isinstance(name, str) or not 0 < len(name.encode()) <= _MAX_NAME_BYTES:
            notes.refuse(f"{path}.name", f"a device name is a text of 1 to {_MAX_NAME_BYTES} bytes")
            continue
        device, own = observe_device(raw, f"spec.devices[{name}]", blank, unknown, reading)
        devices.append(device)
        unknown_fields += own.unknown
        for line in own.refused:
            notes.refuse(*line.split(": ", 1))
    counters: list[tuple[str, str, str]] = []
    counter_sets = []
    for path, raw in notes.objects(spec.get("sharedCounters"), "spec.sharedCounters"):
        counter_set = notes.name(raw, "name", path)
        counter_sets.append(counter_set)
        counters += read_counters(counter_set, raw.get("counters"), f"{path}.counters", notes)
    return SliceObservation(
        uid=identity.uid,
        name=identity.name,
        rv=identity.rv,
        driver=driver,
        pool=pool_name,
        generation=generation,
        slice_count=notes.whole(pool, "resourceSliceCount", "spec.pool"),
        node=node,
        devices=tuple(sorted(devices, key=lambda device: device.fact.device)),
        counters=tuple(sorted(counters)),
        counter_sets=tuple(sorted(counter_sets)),
        unknown_fields=tuple(sorted(set(unknown_fields))),
        unusable=tuple(notes.refused),
    )


def _node_uid(metadata: dict[str, Any], notes: Notes) -> str:
    for path, owner in notes.objects(metadata.get("ownerReferences"), "metadata.ownerReferences"):
        if owner.get("kind") == "Node":
            return notes.name(owner, "uid", path)
    return ""
