"""Known ResourceSlices and the pools they add up to: which generation counts, and which devices it has.

The rules are the scheduler's (k8s.io/dynamic-resource-allocation structured pools, reference kubernetes 2.4): the highest
generation present counts, complete when exactly as many slices are there as each of them announces, invalid when they
disagree, name a device twice or refer to a counter that is not there. Until it is complete and valid, the last such
generation stays effective with all its devices. Arrival order must not matter.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Final

import msgspec

from ingest.diff.known import Collection, Moment, Version
from ingest.diff.pool_state import KnownSlice, Pool, PoolKey, Published, Record, recalled_pool, record_of
from ingest.diff.recalling import Told
from ingest.observe.fields import Identity
from ingest.observe.slices import SliceObservation, observe_slice, slice_fingerprint
from sickbay.facts import DevicePublished, DeviceWithdrawn, Fact, PoolObserved
from sickbay.policy import ReadingPolicy

_decode: Final = msgspec.json.Decoder(DevicePublished).decode


class SliceCollection(Collection[KnownSlice, SliceObservation]):
    """The known slices and their pools."""

    kind: ClassVar[str] = "ResourceSlice"
    namespaced: ClassVar[bool] = False

    def __init__(self, reading: ReadingPolicy) -> None:
        super().__init__()
        self._reading = reading
        self._pools: dict[PoolKey, Pool] = {}
        self._changed: dict[PoolKey, None] = {}
        #: Pools that gained slices or devices; claims may wait for them. The mirror empties it.
        self.grown: dict[PoolKey, None] = {}
        #: Recalled pools whose slices no LIST has told yet.
        self._unlisted: dict[PoolKey, None] = {}

    def fingerprint(self, obj: dict[str, Any]) -> bytes:
        return slice_fingerprint(obj)

    def observe(self, obj: dict[str, Any], moment: Moment) -> SliceObservation:
        return observe_slice(obj, self._reading, at_ms=moment.at_ms, epoch=moment.epoch)

    def node_of(self, key: PoolKey, device: str) -> str:
        """Return the node of a device; "" when it has none or is not known.

        A device that the pool does not have, or not yet, is where the whole pool is, if that is one node.
        """
        pool = self._pools.get(key)
        if pool is None:
            return ""
        published = pool.devices.get(device)
        if published is not None:
            return published.record.node
        nodes = {known.node for known in pool.slices.values()}
        return nodes.pop() if len(nodes) == 1 else ""

    def recall(self, told: Told) -> None:
        for key in sorted(told.devices.keys() | told.pools.keys()):
            pool = recalled_pool(told.devices.get(key, {}), told.pools.get(key, {}))
            if pool is not None:
                self._pools[key] = pool
                self._unlisted[key] = None

    def listed(self) -> None:
        self._changed.update(self._unlisted)
        self._unlisted = {}

    def insert(
        self, identity: Identity, mark: bytes, seen: SliceObservation, moment: Moment, out: list[Fact]
    ) -> KnownSlice:
        del out  # one slice alone says nothing: its pool does, in settle
        known = KnownSlice(identity, moment.epoch, mark)
        self._take(known, seen)
        return known

    def change(self, known: KnownSlice, seen: SliceObservation, moment: Moment, out: list[Fact]) -> bool:
        del moment, out  # one slice alone says nothing: its pool does, in settle
        if known.key != (seen.driver, seen.pool):
            self._leave(known)
        self._take(known, seen)
        return True

    def _take(self, known: KnownSlice, seen: SliceObservation) -> None:
        known.key = (seen.driver, seen.pool)
        known.generation, known.slice_count, known.node = seen.generation, seen.slice_count, seen.node
        known.counters, known.counter_sets = seen.counters, seen.counter_sets
        known.records = tuple(record_of(device, known.version) for device in seen.devices)
        known.wanted = {}
        for device in seen.devices:
            for counter_set, counter, _ in device.fact.consumes_counters:
                known.wanted.setdefault((counter_set, counter), device.fact.device)
        pool = self._pools.setdefault(known.key, Pool())
        if known.uid not in pool.slices:
            pool.slices[known.uid] = known
            self.grown[known.key] = None
        self._changed[known.key] = None
        self.problems += seen.unusable
        self.unread += seen.unknown_fields

    def _leave(self, known: KnownSlice) -> None:
        self._pools[known.key].slices.pop(known.uid, None)
        self._changed[known.key] = None

    def late(
        self,
        known: KnownSlice | None,
        seen: SliceObservation,
        moment: Moment,
        superseded_by: Version,
        out: list[Fact],
    ) -> None:
        """A taint that came and went is evidence, so a late version of an effective device is told with its own version."""
        del known  # only the pool's present state decides
        pool = self._pools.get((seen.driver, seen.pool))
        if pool is None or pool.effective != seen.generation:
            return
        for device in seen.devices:
            published = pool.devices.get(device.fact.device)
            if published is None or published.record.digest == device.digest:
                continue
            out.append(msgspec.structs.replace(device.fact, physical_id=published.physical_id))
            # what equals the last content told is not told again: without this the late version would stand as the newest
            if (device.fact.epoch, device.fact.rv) > published.version:
                pool.devices[device.fact.device] = msgspec.structs.replace(published, version=superseded_by)
                out.append(
                    msgspec.structs.replace(
                        _decode(published.record.body),
                        physical_id=published.physical_id,
                        pool_generation=pool.effective,
                        observed_at_ms=moment.at_ms,
                        epoch=superseded_by[0],
                        rv=superseded_by[1],
                    )
                )

    def end(
        self,
        known: KnownSlice | None,
        seen: SliceObservation | None,
        version: Version,
        moment: Moment,
        out: list[Fact],
        *,
        final: bool,
    ) -> None:
        del seen, version, moment, out, final  # its pool tells what that means, in settle
        if known is not None:
            self._leave(known)

    def settle(self, moment: Moment, out: list[Fact]) -> None:
        changed, self._changed = self._changed, {}
        for key in changed:
            # of a recalled pool nothing is gone before a LIST says so
            if key not in self._unlisted:
                self._evaluate(key, self._pools[key], moment, out)

    def _evaluate(self, key: PoolKey, pool: Pool, moment: Moment, out: list[Fact]) -> None:
        newest = max((known.generation for known in pool.slices.values()), default=None)
        current = sorted(
            (known for known in pool.slices.values() if known.generation == newest),
            key=lambda known: known.name,
        )
        complete, reason = _judge(current)
        strays, pool.strays = pool.strays, ()
        out.extend(_withdrawn(key, stray, "generation", moment) for stray in strays)
        if not current:
            self._withdraw(key, pool, set(), "slice_deleted", moment, out)
            pool.effective, pool.counters = None, ()
        elif complete and not reason:
            records = {record.name: record for known in current for record in known.records}
            self._withdraw(key, pool, set(records), "generation", moment, out)
            pool.effective = newest
            pool.counters = tuple(sorted(counter for known in current for counter in known.counters))
            self._publish(key, pool, records, moment, out)
        self._report(key, pool, newest, current, moment, out, complete=complete, reason=reason)
        if not current:
            del self._pools[key]

    def _withdraw(
        self, key: PoolKey, pool: Pool, kept: set[str], reason: Any, moment: Moment, out: list[Fact]
    ) -> None:
        for name in sorted(set(pool.devices) - kept):
            published = pool.devices.pop(name)
            pool.withdrawn = (moment.epoch, moment.rv)
            out.append(_withdrawn(key, published, reason, moment))

    def _publish(
        self, key: PoolKey, pool: Pool, records: dict[str, Record], moment: Moment, out: list[Fact]
    ) -> None:
        cards = _cards(records)
        for name in sorted(records):
            record = records[name]
            physical_id = _physical_id(key, record, cards)
            before = pool.devices.get(name)
            if (
                before is not None
                and before.record.digest == record.digest
                and before.physical_id == physical_id
            ):
                continue
            if before is not None and before.record.node != record.node:
                self._withdraw(key, pool, set(pool.devices) - {name}, "generation", moment, out)
            if before is None or before.record.node != record.node:
                self.grown[key] = None
            floor = max(pool.withdrawn, before.version if before else (0, 0))
            version = record.version if record.version > floor else (moment.epoch, moment.rv)
            pool.devices[name] = Published(record, physical_id, version)
            out.append(
                msgspec.structs.replace(
                    _decode(record.body),
                    physical_id=physical_id,
                    pool_generation=pool.effective or 0,
                    observed_at_ms=moment.at_ms,
                    epoch=version[0],
                    rv=version[1],
                )
            )

    def _report(
        self,
        key: PoolKey,
        pool: Pool,
        newest: int | None,
        current: list[KnownSlice],
        moment: Moment,
        out: list[Fact],
        *,
        complete: bool,
        reason: str,
    ) -> None:
        """Tell each node that the pool is or was on, when something of the pool changed."""
        nodes = {record.node for known in current for record in known.records}
        nodes = nodes or {known.node for known in current}
        nodes |= {published.record.node for published in pool.devices.values()}
        state = PoolObserved(
            node="",
            observed_at_ms=0,
            driver=key[0],
            pool=key[1],
            effective_generation=pool.effective,
            newest_generation=newest,
            slices_present=len(current),
            slices_expected=max((known.slice_count for known in current), default=0),
            complete=complete,
            invalid_reason=reason,
            counters=pool.counters,
        )
        for node in sorted(nodes.union(pool.reported)):
            if pool.reported.get(node) != state:
                pool.reported[node] = state
                out.append(
                    msgspec.structs.replace(
                        state, node=node, observed_at_ms=moment.at_ms, epoch=moment.epoch, rv=moment.rv
                    )
                )


def _withdrawn(key: PoolKey, published: Published, reason: Any, moment: Moment) -> DeviceWithdrawn:
    return DeviceWithdrawn(
        node=published.record.node,
        observed_at_ms=moment.at_ms,
        epoch=moment.epoch,
        rv=moment.rv,
        device_id=f"dra:{key[0]}/{key[1]}/{published.record.name}",
        driver=key[0],
        pool=key[1],
        device=published.record.name,
        reason=reason,
    )


def _judge(current: list[KnownSlice]) -> tuple[bool, str]:
    """Return whether one generation is complete, and what makes it invalid; both are the same for any arrival order."""
    announced = sorted({known.slice_count for known in current})
    if len(announced) > 1:
        counts = ", ".join(f"{known.name} says {known.slice_count}" for known in current)
        return False, f"slices of one generation disagree on resourceSliceCount: {counts}"
    if not current or len(current) != announced[0]:
        return False, ""
    devices = Counter(record.name for known in current for record in known.records)
    twice = sorted(name for name, count in devices.items() if count > 1)
    if twice:
        return True, f"device {twice[0]} is published more than once"
    sets = Counter(name for known in current for name in known.counter_sets)
    twice = sorted(name for name, count in sets.items() if count > 1)
    if twice:
        return True, f"counter set {twice[0]} is published more than once"
    counters = {counter[:2] for known in current for counter in known.counters}
    missing = sorted(
        (device, *wanted)
        for known in current
        for wanted, device in known.wanted.items()
        if wanted not in counters
    )
    if missing:
        device, counter_set, counter = missing[0]
        what = (
            f"counter {counter} of counter set {counter_set}"
            if counter_set in sets
            else f"counter set {counter_set}"
        )
        return True, f"device {device} consumes {what}, which the pool does not have"
    return True, ""


def _cards(records: dict[str, Record]) -> dict[tuple[str, str], str]:
    """Return the devices that partitions may name as their card; "" for a name that several devices share."""
    if not any(record.parents for record in records.values()):
        return {}
    cards: dict[tuple[str, str], str] = {}
    for record in records.values():
        for name in record.names:
            cards[name] = "" if name in cards else record.name
    return cards


def _physical_id(key: PoolKey, record: Record, cards: dict[tuple[str, str], str]) -> str | None:
    """Return the card that a partition sits on: the pool's own device where it is one, else ``card:<driver>/<value>``."""
    for parent in record.parents:
        if cards.get(parent):
            return f"dra:{key[0]}/{key[1]}/{cards[parent]}"
    return f"card:{key[0]}/{record.parents[0][1]}" if record.parents else None
