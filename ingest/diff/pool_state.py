"""What is kept of slices and of the pools they add up to. What follows from it, ``ingest.diff.pools`` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from ingest.diff.known import Known, Version
from ingest.diff.recalling import SliceFact, newest_version, of_type, version_of
from ingest.observe.devices import DeviceObservation, device_digest
from ingest.observe.fields import Identity
from sickbay.facts import DevicePublished, DeviceWithdrawn, PoolObserved

#: ``(driver, pool name)``: two drivers may use one pool name.
PoolKey: TypeAlias = tuple[str, str]
Counters: TypeAlias = tuple[tuple[str, str, str], ...]

_encode: Final = msgspec.json.Encoder().encode


class Record(msgspec.Struct, frozen=True):
    """A device of a slice, compact: its content is kept as bytes and read again only when it is emitted."""

    name: str
    node: str
    digest: bytes
    body: bytes
    parents: tuple[tuple[str, str], ...]
    names: tuple[tuple[str, str], ...]
    version: Version


class Published(msgspec.Struct, frozen=True):
    """What was last emitted of a device."""

    record: Record
    physical_id: str | None
    version: Version


class KnownSlice(Known):
    """A slice as its pool needs it."""

    __slots__ = ("counter_sets", "counters", "generation", "key", "node", "records", "slice_count", "wanted")

    def __init__(self, identity: Identity, epoch: int, mark: bytes) -> None:
        super().__init__(identity, epoch, mark)
        self.key: PoolKey = ("", "")
        self.generation = 0
        self.slice_count = 0
        self.node = ""
        self.records: tuple[Record, ...] = ()
        self.counters: Counters = ()
        self.counter_sets: tuple[str, ...] = ()
        #: Counter that is consumed to the first device, by name, that does.
        self.wanted: dict[tuple[str, str], str] = {}


class Pool:
    """All slices of one pool, and what is effective of them."""

    __slots__ = ("counters", "devices", "effective", "reported", "slices", "strays", "withdrawn")

    def __init__(self) -> None:
        self.slices: dict[str, KnownSlice] = {}
        self.effective: int | None = None
        self.devices: dict[str, Published] = {}
        self.counters: Counters = ()
        #: Newest version under which a device was withdrawn: what comes back must be newer.
        self.withdrawn: Version = (0, 0)
        #: What each node was last told of the pool.
        self.reported: dict[str, PoolObserved] = {}
        #: Recalled devices that moved to another node, before the stop kept that from the node that they left.
        self.strays: tuple[Published, ...] = ()


def record_of(device: DeviceObservation, version: Version) -> Record:
    fact = device.fact
    return Record(
        name=fact.device,
        node=fact.node,
        digest=device.digest,
        body=_encode(fact),
        parents=device.parents,
        names=device.names,
        version=version,
    )


def recalled_pool(
    devices: Mapping[tuple[str, str], SliceFact], reports: Mapping[str, PoolObserved]
) -> Pool | None:
    """Return a pool as it was told, by device and node and by node; ``None`` when it was told to be gone. Its slices are not known."""
    pool = Pool()
    # a node that was told that the pool is gone hears of it again only when it is there anew
    there = {node: reports[node] for node in sorted(reports) if reports[node].newest_generation is not None}
    pool.reported = {
        node: msgspec.structs.replace(report, node="", observed_at_ms=0, epoch=0, rv=0)
        for node, report in there.items()
    }
    pool.withdrawn = newest_version(dict(enumerate(of_type(devices, DeviceWithdrawn))))
    strays = []
    for fact in of_type(devices, DevicePublished):
        published = Published(_record_told(fact), fact.physical_id, version_of(fact))
        if pool.devices.setdefault(fact.device, published) is not published:
            strays.append(published)
    pool.strays = tuple(strays)
    for report in of_type(there, PoolObserved)[:1]:
        pool.effective, pool.counters = report.effective_generation, report.counters
    return pool if there or pool.devices else None


def _record_told(fact: DevicePublished) -> Record:
    return Record(
        name=fact.device,
        node=fact.node,
        digest=device_digest(fact),
        body=_encode(fact),
        parents=(),
        names=(),
        version=version_of(fact),
    )
