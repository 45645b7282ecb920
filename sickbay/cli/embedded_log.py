"""A store in the place of Kafka: facts are folded, decided and written in this process, each batch in one transaction.

What Kafka, the workers and the projector do for a large cluster happens here between two calls, behind the same contract
(``ingest.ports.FactLog``). A fact was told when its rows, its decisions and the position stand in the store, and not before;
so a process that is killed begins again from the log by replay, and writes what it would have written. Others may write
requests into the same store meanwhile: the log is folded again then, and the batch decided over what they asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Final

from ingest.ports import Memory
from projections.engine import Store
from projections.log import Position
from projections.records import LogRecord, ParkedItem
from sickbay.cli.continuing import linked
from sickbay.cli.folding import Fold, partition_of_fact
from sickbay.codec import fact_id, open_envelope, stream_of
from sickbay.deadletters import DeadLetter
from sickbay.decisions import BreakerClosed, BreakerOpened, CensusTaken, Decision
from sickbay.envelope import partition_of
from sickbay.errors import StoreError
from sickbay.events import Event
from sickbay.facts import BreakerResetRequested, Fact, PolicyChanged, Tick
from sickbay.operations.failpoints import reach
from streams.breaker import BREAKER, BreakerState

#: Times that a batch is folded over a log that others move on meanwhile.
_ATTEMPTS_MAX: Final = 5

#: The order in which the breaker hears what has one time.
_HEARD: Final[dict[type[Event], int]] = {
    PolicyChanged: 0,
    BreakerResetRequested: 0,
    Tick: 1,
    CensusTaken: 2,
    BreakerOpened: 3,
    BreakerClosed: 3,
}


class EmbeddedLog:
    """A ``FactLog`` over one store. ``recall`` comes first, and calls come one after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._home = partition_of("", store.partitions)
        self._folded: list[LogRecord] = []
        self._positions: dict[int, Position] = {}
        #: The newest fact of every subject; emptied when it was recalled.
        self._newest: dict[tuple[object, ...], Fact] = {}
        self._begin()

    def _begin(self) -> None:
        total = self._store.partitions
        self._folded.clear()
        self._fold = Fold(range(total), total, self._folded.extend)
        self._breaker = BreakerState()

    @property
    def partitions(self) -> int:
        """How many partitions the store has."""
        return self._store.partitions

    @property
    def waiting(self) -> int:
        """Nothing waits: what was taken is kept."""
        return 0

    async def recall(self) -> Memory:
        """Fold the log as it stands and return the newest fact of every subject. Raises StoreError and CodecError."""
        await asyncio.to_thread(self._restore)
        facts, self._newest = list(self._newest.values()), {}
        return Memory(facts, 0, max((fact.observed_at_ms for fact in facts), default=None))

    def lead(self, ingest_epoch: int) -> None:
        """Do nothing: a second writer of a store is told by the links of its log, not by the number of its leadership."""

    async def publish(self, facts: Sequence[Fact]) -> None:
        """Fold facts and write them with what they lead to. Raises StoreError; nothing of them is written then."""
        await asyncio.to_thread(self._publish, facts)

    async def drain(self) -> None:
        """Return at once: what was published is kept."""

    async def park(self, letters: Sequence[DeadLetter]) -> None:
        """Keep what could not be used among the parked of the store. Raises StoreError."""
        items = [ParkedItem(letter.place, letter.reason, letter.value, letter.at_ms) for letter in letters]
        await asyncio.to_thread(self._store.park, items)

    async def close(self) -> None:
        """Let go of the store."""
        await asyncio.to_thread(self._store.close)

    # --- writing ---

    def _publish(self, facts: Sequence[Fact]) -> None:
        for _ in range(_ATTEMPTS_MAX):
            fresh = self._fresh(facts)
            if not fresh or self._is_written(fresh):
                return
            self._restore()
            self._newest = {}
        raise StoreError(
            f"{self._store.place}: somebody else keeps writing; let one process watch into a store"
        )

    def _fresh(self, facts: Sequence[Fact]) -> list[Fact]:
        """Return the facts that the log does not hold: a repeat is one event."""
        by_id: dict[str, Fact] = {}
        asked: dict[int, list[str]] = {}
        for fact in facts:
            event_id = fact_id(fact)
            if event_id not in by_id:
                by_id[event_id] = fact
                asked.setdefault(partition_of_fact(fact, self.partitions), []).append(event_id)
        held = self._store.held(asked)
        return [fact for event_id, fact in by_id.items() if event_id not in held]

    def _is_written(self, facts: Sequence[Fact]) -> bool:
        """Fold and write facts; return whether the log still stood where the fold stands, for nothing was written otherwise."""
        self._decide(facts)
        records = linked(self._folded, self._positions)
        reach("embedded.decided")
        self._folded.clear()
        try:
            if self._store.write(records).skipped:
                return False
        except StoreError:
            if self._store.positions() == self._positions:
                raise
            return False
        reach("embedded.written")
        for record in records:
            newest_ms = (
                self._positions[record.partition].newest_ms if record.partition in self._positions else 0
            )
            self._positions[record.partition] = Position(
                record.offset + 1, record.chain, max(newest_ms, record.envelope.at_ms)
            )
        return True

    def _decide(self, facts: Sequence[Fact]) -> None:
        taken = self._fold.take(facts)
        for fact in facts:
            if isinstance(fact, PolicyChanged) and fact.partition == self._home:
                self._breaker = BREAKER.evolve(self._breaker, fact)
        tick = next((fact for fact in facts if isinstance(fact, Tick)), None)
        if tick is not None:
            heard: list[Fact | CensusTaken] = [tick, *sorted(taken, key=lambda census: census.partition)]
            self._breaker, decisions = BREAKER.step(self._breaker, heard)
            if decisions:
                self._fold.breaker(decisions, tick.observed_at_ms)
        self._fold.flush()

    # --- restoring ---

    def _restore(self) -> None:
        """Fold the log anew, deciding nothing; the breaker hears its part of all partitions by time, as it did live."""
        self._begin()
        self._newest = {}
        self._positions = self._store.positions()
        heard = merge(*(self._replayed(number) for number in self._positions), key=lambda pair: pair[0])
        for _, event in heard:
            self._breaker = BREAKER.evolve(self._breaker, event)

    def _replayed(self, number: int) -> Iterator[tuple[tuple[int, int, int], Fact | Decision]]:
        """Replay a partition and yield what the breaker heard of it, each with its place in the order of all."""
        end = self._positions[number].next_offset
        for record in self._store.read(number):
            if record.offset >= end:
                return
            event = open_envelope(record.envelope)
            self._fold.restore([record._replace(event=event)], open_envelope)
            if isinstance(event, Fact):
                self._keep(event)
            rank = _HEARD.get(type(event))
            if rank is not None and (number == self._home or isinstance(event, CensusTaken)):
                yield (record.envelope.at_ms, rank, number), event

    def _keep(self, fact: Fact) -> None:
        # a claim's last allocation explains words that come after it was taken back
        held = bool(getattr(fact, "results", ()))
        subject = (fact.KIND, stream_of(fact), fact.subject, getattr(fact, "pod_uid", ""), held)
        known = self._newest.get(subject)
        if known is None or _version(known) <= _version(fact):
            # in the order of the log: of equal versions the last counts
            self._newest.pop(subject, None)
            self._newest[subject] = fact


def _version(fact: Fact) -> tuple[int, int, int]:
    return fact.epoch, fact.rv, fact.observed_at_ms
