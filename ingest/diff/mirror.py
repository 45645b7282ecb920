"""The mirror of the cluster: frames in, facts out.

It keeps the clock of each resource type (epoch, newest version, gaps), hands objects to the collection they belong to, and
joins what belongs together afterwards: claims to slices, words to claims, silence to Leases. One bad object is parked with
its place and never stops the rest. It must do no I/O, read no clock and know nothing of who feeds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ingest.diff.claims import ClaimCollection
from ingest.diff.items import Once, names_of, rv_of, shown, uid_of
from ingest.diff.known import Collection, Known, Moment
from ingest.diff.leases import LeaseCollection, Sighted
from ingest.diff.nodes import NodeCollection
from ingest.diff.pods import PodCollection
from ingest.diff.pools import SliceCollection
from ingest.diff.recalling import Told
from ingest.frames import RESOURCES, Frame, Parked, Unread
from ingest.observe.fields import read_resource_version
from sickbay.errors import ObjectError
from sickbay.facts import EpochChanged, Fact, ResyncCompleted, WatchGapFound
from sickbay.policy import ReadingPolicy

#: Parked notes kept until they are drained; more are only counted.
_PARKED_MAX: Final = 10_000
#: Different names that each counter tells apart; the rest share one.
_COUNTED_MAX: Final = 1_000
_OTHERS: Final = "(others)"


class _Clock(msgspec.Struct):
    """What is known of one resource type as a whole."""

    epoch: int = 0
    rv: int = 0
    #: When something of it was last heard; ``None`` before the first frame.
    heard_ms: int | None = None
    #: ``(time, version)`` at which a gap began.
    gap: tuple[int, int] | None = None


class Mirror:
    """The known set of a cluster. ``partitions`` is the number of partitions that hear of gaps, epochs and resyncs."""

    def __init__(self, reading: ReadingPolicy, partitions: int) -> None:
        if partitions < 1:
            raise ValueError(f"partitions must be at least 1, not {partitions}")
        self._partitions = partitions
        self._slices = SliceCollection(reading)
        self._claims = ClaimCollection(self._slices)
        self._pods = PodCollection(self._claims)
        self._leases = LeaseCollection()
        self._collections: dict[str, Collection[Any, Any]] = {
            "pods": self._pods,
            "resourceslices": self._slices,
            "resourceclaims": self._claims,
            "nodes": NodeCollection(reading),
        }
        self._clocks = {resource: _Clock() for resource in RESOURCES}
        self._begun = False
        self._sighted = Sighted()
        self._parked: list[Parked] = []
        self._parked_once = Once()
        #: Frames of resources that are not read, by name.
        self.unknown_resources: Counter[str] = Counter()
        #: Times a field was seen that this build does not read, by path.
        self.unknown_fields: Counter[str] = Counter()
        #: Parked notes that did not fit and were only counted.
        self.parked_uncounted = 0

    @property
    def waiting_pods(self) -> int:
        """Pods with words that wait for their claim."""
        return len(self._pods.words.waiting)

    def recall(self, facts: Iterable[Fact], heard_ms: int | None) -> None:
        """Know again what was told before a restart; call it once, before the first frame.

        ``facts`` hold at least the newest fact of every subject on every node, in any order; the newest by ``(epoch, rv)``
        counts, of equal versions the last given. ``heard_ms`` is when the cluster was last heard of, ``None`` when only the
        facts tell. The first LIST of each resource then ends a gap from there, and emits what changed meanwhile; until it is
        read, each object is only what was told of it. ``ingest.diff.recalling`` says what a restart still loses. Raises
        ValueError when a frame was applied already.
        """
        if self._begun:
            raise ValueError("recall what was told before the first frame is applied")
        told = Told(facts)
        for resource, heard in told.heard.items():
            clock = self._clocks.get(resource)
            if clock is not None:
                clock.epoch, clock.rv = heard.epoch, heard.rv
                clock.heard_ms = heard.at_ms if heard_ms is None else heard_ms
                clock.gap = (clock.heard_ms, clock.rv)
        # a claim is where its devices are, and a word is joined through its claim
        for resource in ("resourceslices", "resourceclaims", "pods", "nodes"):
            self._collections[resource].recall(told)
        self._leases.recall(told)

    def drain_parked(self) -> list[Parked]:
        """Return what could not be used since the last call."""
        parked, self._parked = self._parked, []
        return parked

    def apply(self, frame: Frame) -> list[Fact]:
        """Take over one frame and return what it changes, in the order in which it happened.

        A TICK only moves time on. Never raises for what a frame holds: what cannot be used is parked.
        """
        out: list[Fact] = []
        self._sight(frame.at_ms)
        # whoever writes ticks watches Leases too
        if frame.type == "TICK" or (frame.resource == "leases" and frame.type != "ERROR"):
            self._leases.sight(frame.at_ms)
        if frame.resource in self._clocks:
            self._apply(frame, self._clocks[frame.resource], out)
        elif frame.type != "TICK":
            _count(self.unknown_resources, frame.resource)
        self._let_time_pass(frame.at_ms, out)
        return out

    def pass_over(self, unread: Unread) -> list[Fact] | None:
        """Take over a newer version of an object whose content is known already, without reading it.

        Return what ``apply`` would for the frame, ``None`` when the frame must be read: nothing is changed then.
        """
        known = self._collections[unread.resource].by_uid.get(unread.uid)
        clock = self._clocks[unread.resource]
        if known is None or unread.mark != known.mark or (clock.epoch, unread.rv) <= known.version:
            return None
        out: list[Fact] = []
        self._sight(unread.at_ms)
        known.advance(clock.epoch, unread.rv)
        clock.rv = max(clock.rv, unread.rv)
        clock.heard_ms = unread.at_ms
        self._let_time_pass(unread.at_ms, out)
        return out

    def _sight(self, at_ms: int) -> None:
        self._begun = True
        self._sighted.sign(at_ms)
        self._pods.words.sighted_ms = self._sighted.ms

    def _let_time_pass(self, at_ms: int, out: list[Fact]) -> None:
        if self._pods.words.waiting:
            self._pods.give_up_waiting(at_ms, out)
        if self._clocks["leases"].gap is None:
            self._leases.lapse(at_ms, out)

    def _apply(self, frame: Frame, clock: _Clock, out: list[Fact]) -> None:
        obj = frame.object
        if not isinstance(obj, dict):
            self._park(frame, f"{frame.type} of {frame.resource}: expected a JSON object", None)
        elif frame.type == "ERROR":
            self._error(frame, clock, obj)
        elif frame.type == "BOOKMARK":
            self._bookmark(frame, clock, obj)
        elif frame.type == "LIST":
            self._list(frame, clock, obj, out)
        else:
            self._event(frame, clock, obj, out)

    def _error(self, frame: Frame, clock: _Clock, status: dict[str, Any]) -> None:
        """410 ends what the watch can tell until the next LIST; other errors say nothing of objects."""
        gone = status.get("code") == 410 or (
            status.get("code") is None and status.get("reason") in ("Expired", "Gone")
        )
        if gone and clock.gap is None:
            clock.gap = (frame.at_ms if clock.heard_ms is None else clock.heard_ms, clock.rv)

    def _bookmark(self, frame: Frame, clock: _Clock, obj: dict[str, Any]) -> None:
        metadata = obj.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        try:
            rv = read_resource_version(version, f"BOOKMARK of {frame.resource}")
        except ObjectError as error:
            self._park(frame, str(error), obj)
            return
        clock.rv = max(clock.rv, rv)
        clock.heard_ms = frame.at_ms

    def _event(self, frame: Frame, clock: _Clock, obj: dict[str, Any], out: list[Fact]) -> None:
        rv = rv_of(obj)
        moment = Moment(
            frame.at_ms, clock.epoch, rv, frame.at_ms if clock.heard_ms is None else clock.heard_ms
        )
        clock.rv = max(clock.rv, rv)
        clock.heard_ms = frame.at_ms
        self._one(frame, obj, moment, out, frame.place)
        self._join(frame.resource, moment, out)

    def _one(self, frame: Frame, obj: Any, moment: Moment, out: list[Fact], place: str) -> str | None:
        """Apply one object; return what became of it, ``None`` when it was parked."""
        try:
            if frame.resource == "leases":
                if frame.type == "DELETED":
                    self._leases.delete(obj)
                    return "same"
                return self._leases.put(obj, moment, out)
            collection = self._collections[frame.resource]
            outcome = (
                collection.delete(obj, moment, out)
                if frame.type == "DELETED"
                else collection.put(obj, moment, out)
            )
        except (ObjectError, UnicodeEncodeError) as error:
            surrogate = isinstance(error, UnicodeEncodeError)
            reason = "a text holds a lone surrogate and is no Unicode" if surrogate else str(error)
            if self._parked_once.is_new(frame.resource, obj, reason):
                self._park(frame, reason, obj, place)
            return None
        if collection.problems:
            for problem in collection.problems:
                self._park(frame, problem, obj, place)
            collection.problems.clear()
        if collection.unread:
            for path in collection.unread:
                _count(self.unknown_fields, path)
            collection.unread.clear()
        return outcome

    def _join(self, resource: str, moment: Moment, out: list[Fact]) -> None:
        """Emit what follows from the frame for other objects."""
        if resource == "resourceslices":
            self._slices.settle(moment, out)
            if self._slices.grown:
                grown, self._slices.grown = self._slices.grown, {}
                self._claims.place(grown, moment.at_ms, out)
        if self._claims.touched or self._claims.touched_names:
            self._pods.rejoin(moment.at_ms, out)

    # --- lists -------------------------------------------------------------------------------------------------------

    def _list(self, frame: Frame, clock: _Clock, obj: dict[str, Any], out: list[Fact]) -> None:
        items = obj.get("items")
        if items is None:
            items = []
        metadata = obj.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        if not isinstance(items, list):
            self._park(frame, f"LIST of {frame.resource}: items: expected a JSON list", obj)
            return
        stated = metadata.get("resourceVersion")
        newest = max((rv_of(item) for item in items), default=0)
        if stated is None or stated == "":
            # kubectl's own List wrapper has no version. Its newest item may be older than what was seen, because the
            # newest object is gone; only an object that went backwards shows a restore.
            back = newest < clock.rv and self._went_back(frame.resource, clock.epoch, items, revived=False)
            rv = newest if back else max(newest, clock.rv)
        else:
            try:
                rv = read_resource_version(stated, f"LIST of {frame.resource}")
            except ObjectError as error:
                self._park(frame, str(error), obj)
                return
            # a restored cluster may have outgrown what was seen of the old history
            back = rv < clock.rv or self._went_back(frame.resource, clock.epoch, items, revived=True)
        if back:
            self._new_epoch(frame, clock, rv, out)
        self._end_gap(frame, clock, rv, out)
        heard_ms = frame.at_ms if clock.heard_ms is None else clock.heard_ms
        moment = Moment(frame.at_ms, clock.epoch, rv, heard_ms)
        clock.rv, clock.heard_ms = max(rv, newest), frame.at_ms
        partial = bool(metadata.get("continue"))
        outcomes, removed = self._items(frame, items, moment, out, partial=partial)
        self._join(frame.resource, moment, out)
        if partial:
            self._park(
                frame, f"LIST of {frame.resource} is one page of several: nothing can be told to be gone; join the pages",
                None,
            )  # fmt: skip
            return
        out.extend(
            ResyncCompleted(
                node="",
                observed_at_ms=frame.at_ms,
                epoch=clock.epoch,
                rv=rv,
                partition=partition,
                watched=frame.resource,
                objects=len(items),
                added=outcomes["added"],
                changed=outcomes["changed"],
                removed=removed,
            )
            for partition in range(self._partitions)
        )

    def _items(
        self, frame: Frame, items: list[Any], moment: Moment, out: list[Fact], *, partial: bool
    ) -> tuple[Counter[str], int]:
        """Apply the items of a LIST, those that are missing first; return the outcomes and how many are gone."""
        outcomes: Counter[str] = Counter()
        removed = 0
        if frame.resource == "leases":
            if not partial:
                removed = self._leases.keep_only({name for name, _ in map(names_of, items) if name})
        elif not partial:
            collection = self._collections[frame.resource]
            uids = {uid_of(item) for item in items}
            # An item that cannot be read is still there: its uid, or its name where it has none, keeps it.
            unreadable = {names_of(item) for item in items if not uid_of(item)}
            missing: list[Known] = [
                known
                for known in collection.by_uid.values()
                if known.uid not in uids and (known.name, known.namespace) not in unreadable
            ]
            for known in missing:
                collection.vanish(known, moment, out)
            removed = len(missing)
            collection.listed()
        for index, item in enumerate(items):
            outcome = self._one(frame, item, moment, out, f"{frame.place} items[{index}]")
            if outcome is not None:
                outcomes[outcome] += 1
        return outcomes, removed

    def _went_back(self, resource: str, epoch: int, items: list[Any], *, revived: bool) -> bool:
        """Whether an object of ``items`` has a lower version than it had, or, where that counts, is back from the dead.

        A LIST is the state at its own version. Where that is not behind what was seen, only another history explains either.
        """
        collection = self._collections.get(resource)
        if collection is None:
            return False
        versions = ((item, uid_of(item), (epoch, rv_of(item))) for item in items)
        return any(
            version[1] and collection.is_past(item, uid, version, revived=revived)
            for item, uid, version in versions
        )

    def _new_epoch(self, frame: Frame, clock: _Clock, list_rv: int, out: list[Fact]) -> None:
        """The cluster was restored to an earlier state: from here on versions are compared anew (W3)."""
        clock.epoch += 1
        last_rv, clock.rv = clock.rv, list_rv
        out.extend(
            EpochChanged(
                node="",
                observed_at_ms=frame.at_ms,
                epoch=clock.epoch,
                partition=partition,
                watched=frame.resource,
                last_rv=last_rv,
                list_rv=list_rv,
            )
            for partition in range(self._partitions)
        )

    def _end_gap(self, frame: Frame, clock: _Clock, rv: int, out: list[Fact]) -> None:
        if clock.gap is None:
            return
        from_ms, from_rv = clock.gap
        clock.gap = None
        if frame.resource == "leases":
            self._leases.restart()
        out.extend(
            WatchGapFound(
                node="",
                observed_at_ms=frame.at_ms,
                epoch=clock.epoch,
                partition=partition,
                watched=frame.resource,
                from_ms=from_ms,
                to_ms=frame.at_ms,
                from_rv=from_rv,
                to_rv=rv,
            )
            for partition in range(self._partitions)
        )

    # --- what could not be used --------------------------------------------------------------------------------------

    def _park(self, frame: Frame, reason: str, obj: Any, place: str = "") -> None:
        if len(self._parked) >= _PARKED_MAX:
            self.parked_uncounted += 1
            return
        self._parked.append(
            Parked(place=place or frame.place, reason=reason, raw=shown(obj), at_ms=frame.at_ms)
        )


def _count(counter: Counter[str], name: str) -> None:
    counter[name if name in counter or len(counter) < _COUNTED_MAX else _OTHERS] += 1
