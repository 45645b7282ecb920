"""Late facts put where they belong: a node's custody as a function of the *set* of its facts and of the time.

The rules of ``node`` are causal: run over facts in order of event time they give one state. This module keeps the facts of the
lateness horizon and the state before them (``base``). A fact in order is applied to the running state (``head``); a late one
makes the head be built again from the base. So any order of arrival inside the horizon gives one state (design, law 2).

A source's versions decide the order of its own facts: a fact that arrives after a newer version of the same object became true
no later than that one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from sickbay.decisions import Decision
from sickbay.events import KINDS
from sickbay.facts import Fact, WatchGapFound
from sickbay.policy import Policy
from streams.custody import node as rules
from streams.custody.commuting import commutes
from streams.custody.context import Context
from streams.custody.drivers import kept_part
from streams.custody.signals import Source, Version, ends_source, event_time_ms, source_of
from streams.custody.state import NodeCustody

#: A mark is made after every so many facts, for so many facts after a rebuild, and so many are kept: what comes late mostly
#: comes a few facts late, and a node whose facts come in order pays nothing.
_MARK_EVERY: Final = 4
_MARKING: Final = 32
_MARKS_LIMIT: Final = 8
#: Retained facts above which those older than the horizon move into the base; twice what remained, after a time that did not
#: make it less.
_TRIM_ABOVE: Final = 48
#: Identities of facts older than the horizon by which a repeat is told from a late arrival.
SEEN_LIMIT: Final = 32
#: Sources that ended, a Pod that is gone for example, of which the last version is kept: an old word of theirs that turns up
#: again is late, and no news.
ENDED_LIMIT: Final = 32

_BEFORE_ALL: Final[tuple[int, Source, Version]] = (-1, (), ())
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(NodeCustody)


class Entry:
    """One retained fact and the time it is taken to have become true."""

    __slots__ = ("fact", "source", "time_ms", "version")

    def __init__(self, fact: Fact, source: Source, version: Version, time_ms: int) -> None:
        self.fact = fact
        self.source = source
        self.version = version
        self.time_ms = time_ms

    @property
    def order(self) -> tuple[int, Source, Version]:
        """Position in the node's event time."""
        return self.time_ms, self.source, self.version


class Timeline:
    """One node's facts inside the horizon, its base and its head."""

    __slots__ = (
        "_behind",
        "_last",
        "_marking",
        "_marks",
        "_quiet_since_ms",
        "_trim_above",
        "base",
        "ended",
        "floors",
        "head",
        "late",
        "logs",
        "now_ms",
        "outbox",
        "pending",
        "policies",
        "rebuilt_from_ms",
        "retained",
        "seen",
    )  # fmt: skip

    def __init__(self, custody: NodeCustody, policies: Mapping[str, Policy], now_ms: int) -> None:
        self.policies = policies
        self.now_ms = now_ms
        self.head = custody
        self.base = _encoder.encode(custody)
        self.logs: dict[Source, list[Entry]] = {}
        #: Newest version of a source that is already in the base, and its time.
        self.floors: dict[Source, tuple[Version, int]] = {}
        self.ended: list[Source] = []
        self.seen: list[tuple[Source, Version]] = []
        self.retained = 0
        self.pending: list[Entry] = []
        #: Facts that came later than the horizon and were not seen before.
        self.late: list[Fact] = []
        #: Transitions since the aggregate last announced, in order.
        self.outbox: list[Decision] = []
        #: Event time from which the head was built again since then; ``None`` when it only moved on.
        self.rebuilt_from_ms: int | None = None
        self._behind = False
        #: ``(order of the last fact, the head right after it)``, oldest first: where a rebuild may begin instead of at the base.
        self._marks: list[tuple[tuple[int, Source, Version], bytes]] = []
        #: Facts for which marks are still made.
        self._marking = 0
        self._trim_above = _TRIM_ABOVE
        self._last = _BEFORE_ALL
        #: Since this time nothing happened in the head, so that a fact of a later time is still in order.
        self._quiet_since_ms = 0

    @property
    def cut_ms(self) -> int:
        """Facts that became true before this are late."""
        return self.now_ms - self.policies[self.head.policy_hash].lateness_horizon_ms

    def absorb(self, fact: Fact) -> None:
        """Take a fact in; the head follows with the next ``advance``."""
        if not self.pending and self.rebuilt_from_ms is not None:
            # the step that rebuilt the head is over, and what it led to was said: from here on transitions count again
            self.outbox, self.rebuilt_from_ms = [], None
        observed_ms = fact.observed_at_ms
        self.now_ms = max(self.now_ms, observed_ms)
        found = source_of(fact)
        if found is None:
            return
        source, version = found
        time_ms, cut_ms = event_time_ms(fact), self.cut_ms
        if isinstance(fact, WatchGapFound) and time_ms >= self.head.time_ms:
            # nothing was decided since the gap began, however long it lasted
            cut_ms = min(cut_ms, self.head.time_ms)
        else:
            time_ms = max(time_ms, observed_ms - self.policies[self.head.policy_hash].lateness_horizon_ms)
        log = self.logs.get(source)
        position = 0
        if log:
            if version > log[-1].version:
                position = len(log)
            else:
                position = bisect_left(log, version, key=lambda e: e.version)
                if log[position].version == version:
                    return
                time_ms = min(time_ms, log[position].time_ms)
        floor = self.floors.get(source)
        if floor is not None and version <= floor[0]:
            time_ms = min(time_ms, floor[1])
        if time_ms < cut_ms:
            self._too_late(fact, source, version)
            return
        entry = Entry(kept_part(fact, self.policies), source, version, time_ms)
        if log is None:
            self.logs[source] = [entry]
        else:
            log.insert(position, entry)
            for earlier in log[:position]:
                if earlier.time_ms > time_ms:
                    self._mark_behind(min(earlier.time_ms, time_ms))
                    earlier.time_ms = time_ms
        self.pending.append(entry)
        self.retained += 1

    def knows(self, fact: Fact) -> bool:
        """Whether this version of the fact's source is retained, is the last one in the base, or was remembered as seen."""
        found = source_of(fact)
        if found is None:
            return False
        source, version = found
        log = self.logs.get(source)
        if log:
            position = bisect_left(log, version, key=lambda e: e.version)
            if position < len(log) and log[position].version == version:
                return True
        floor = self.floors.get(source)
        return (floor is not None and floor[0] == version) or found in self.seen

    def _too_late(self, fact: Fact, source: Source, version: Version) -> None:
        identity = (source, version)
        if identity in self.seen:
            return
        self._remember(identity)
        self.late.append(fact)

    def _remember(self, identity: tuple[Source, Version]) -> None:
        self.seen.append(identity)
        if len(self.seen) > SEEN_LIMIT:
            del self.seen[0]

    def _mark_behind(self, time_ms: int) -> None:
        self._behind = True
        self.rebuilt_from_ms = time_ms if self.rebuilt_from_ms is None else min(self.rebuilt_from_ms, time_ms)

    def advance(self) -> None:
        """Bring the head up to ``now_ms`` with every fact absorbed so far."""
        head = self.head
        if not self.pending and head.due_ms > self.now_ms:
            head.time_ms = max(head.time_ms, self.now_ms)
            return
        context = Context(head, self.policies)
        if len(self.pending) > 1:
            self.pending.sort(key=lambda e: e.order)
        for entry in self.pending:
            in_order = entry.order >= self._last and entry.time_ms >= self._quiet_since_ms
            if self._behind or not (in_order or commutes(context, entry.fact, entry.time_ms)):
                self.outbox += context.out
                self._mark_behind(entry.time_ms)
                self._rebuild()
                return
            if in_order:
                self._apply(context, entry)
            else:
                self._apply_late(context, entry)
        self.pending = []
        rules.advance(context, self.now_ms)
        self._take(context)

    def _take(self, context: Context) -> None:
        """Keep what a walk over the head had to say."""
        for decision in context.out:
            self._quiet_since_ms = max(self._quiet_since_ms, decision.at_ms)
        self.outbox += context.out
        if self.retained > self._trim_above:
            self.trim()

    def _apply(self, context: Context, entry: Entry) -> None:
        if context.node.due_ms <= entry.time_ms:
            rules.advance(context, entry.time_ms)
        context.node.time_ms = entry.time_ms
        rules.apply(context, entry.fact, entry.time_ms)
        self._last = entry.order
        self._quiet_since_ms = max(self._quiet_since_ms, entry.time_ms)
        if self._marking and context.node is self.head:
            self._marking -= 1
            if self._marking % _MARK_EVERY == 0:
                self._marks.append((entry.order, _encoder.encode(self.head)))
                del self._marks[:-_MARKS_LIMIT]

    def _apply_late(self, context: Context, entry: Entry) -> None:
        """Apply a fact that commutes with what came since at its own time, and what then falls due up to now."""
        now_ms = context.node.time_ms
        self._marks = [mark for mark in self._marks if mark[0] < entry.order]
        context.node.time_ms = entry.time_ms
        rules.apply(context, entry.fact, entry.time_ms)
        rules.advance(context, now_ms)

    def _rebuild(self) -> None:
        assert self.rebuilt_from_ms is not None
        self._marks = [mark for mark in self._marks if mark[0][0] < self.rebuilt_from_ms]
        start, state = self._marks[-1] if self._marks else (_BEFORE_ALL, self.base)
        entries = sorted(
            (e for log in self.logs.values() for e in log if e.order > start), key=lambda e: e.order
        )
        self.head = _decoder.decode(state)
        self._last, self._quiet_since_ms, self._behind, self.pending = start, max(start[0], 0), False, []
        self._marking = len(entries) + _MARKING
        context = Context(self.head, self.policies)
        for entry in entries:
            self._apply(context, entry)
        rules.advance(context, self.now_ms)
        # what was said about the time before the late fact stays as it was said
        self.outbox = [d for d in self.outbox if d.at_ms < self.rebuilt_from_ms]
        context.out = [d for d in context.out if d.at_ms >= self.rebuilt_from_ms]
        self._take(context)

    def trim(self) -> None:
        """Move the facts that are older than the horizon into the base; the head does not change."""
        cut_ms = self.cut_ms
        old = sorted(
            (e for log in self.logs.values() for e in log if e.time_ms < cut_ms), key=lambda e: e.order
        )
        base = _decoder.decode(self.base)
        self._trim_above = max(_TRIM_ABOVE, 2 * (self.retained - len(old)))
        if not old and base.due_ms >= cut_ms:
            if base.time_ms < cut_ms - 1:
                base.time_ms = cut_ms - 1
                self.base = _encoder.encode(base)
            return
        context = Context(base, self.policies)
        last, quiet_since_ms = self._last, self._quiet_since_ms
        for entry in old:
            self._apply(context, entry)
        self._last, self._quiet_since_ms = last, quiet_since_ms
        rules.advance(context, cut_ms - 1)
        self.base = _encoder.encode(base)
        self._marks = [mark for mark in self._marks if mark[0][0] >= cut_ms]
        for entry in old:
            self._remember((entry.source, entry.version))
            log = self.logs[entry.source]
            log.remove(entry)
            if not log:
                del self.logs[entry.source]
            self.floors[entry.source] = (entry.version, entry.time_ms)
            if entry.source in self.ended:
                self.ended.remove(entry.source)
            if ends_source(entry.fact):
                self.ended.append(entry.source)
        while len(self.ended) > ENDED_LIMIT:
            self.floors.pop(self.ended.pop(0), None)
        self.retained -= len(old)

    def dump(self) -> dict[str, Any]:
        """Return the canonical content: equal for every order of arrival of one set of facts."""
        self.advance()
        self.trim()
        entries = sorted((e for log in self.logs.values() for e in log), key=lambda e: e.order)
        return {
            "now_ms": self.now_ms,
            "base": msgspec.to_builtins(_decoder.decode(self.base)),
            "facts": [
                {"kind": e.fact.KIND, "fact": msgspec.to_builtins(e.fact), "time_ms": e.time_ms}
                for e in entries
            ],
            "floors": sorted([list(s), list(v), t] for s, (v, t) in self.floors.items()),
            "ended": [list(s) for s in self.ended],
            "seen": [[list(s), list(v)] for s, v in self.seen],
        }

    @classmethod
    def load(cls, content: Mapping[str, Any], policies: Mapping[str, Policy]) -> Timeline:
        """Read back what ``dump`` wrote."""
        base = msgspec.convert(content["base"], NodeCustody)
        timeline = cls(base, policies, content["now_ms"])
        timeline.floors = {tuple(s): (tuple(v), t) for s, v, t in content["floors"]}
        timeline.ended = [tuple(s) for s in content["ended"]]
        timeline.seen = [(tuple(s), tuple(v)) for s, v in content["seen"]]
        for item in content["facts"]:
            fact = msgspec.convert(item["fact"], KINDS[item["kind"]])
            assert isinstance(fact, Fact)
            found = source_of(fact)
            assert found is not None
            entry = Entry(fact, *found, item["time_ms"])
            timeline.logs.setdefault(entry.source, []).append(entry)
            timeline.pending.append(entry)
            timeline.retained += 1
        for log in timeline.logs.values():
            log.sort(key=lambda e: e.version)
        timeline.advance()
        timeline.outbox, timeline.rebuilt_from_ms = [], None
        return timeline
