"""Facts in, log records out: the fold of some partitions, with the ticks that time calls for.

This is the shell around ``streams.partition`` that replay uses; a Faust agent will be another. It owns offsets and the order in
which things are logged: a fact, then the decisions it caused. It does not write anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from projections.records import LogRecord
from sickbay.codec import encode, wrap_decision, wrap_fact
from sickbay.decisions import BreakerClosed, BreakerOpened, CensusTaken, Decision
from sickbay.envelope import Envelope, partition_of
from sickbay.facts import BreakerStateChanged, Fact, PolicyChanged, Tick
from streams.custody.state import NEVER
from streams.partition import Partition, arrival_order

#: Event time between two ticks of a replay. Deadlines fall due at their own time whatever the grid; it is how often the
#: breaker looks, well inside its window.
TICK_MS: Final = 10_000

#: Records that are handed on together.
_BATCH_RECORDS: Final = 2_000


def on_grid(at_ms: int) -> int:
    """Return the first tick time at or after ``at_ms``."""
    return -(-at_ms // TICK_MS) * TICK_MS


class Fold:
    """The partitions of one worker."""

    def __init__(
        self, numbers: Iterable[int], total: int, write: Callable[[Sequence[LogRecord]], object]
    ) -> None:
        self._total = total
        self._write = write
        self._partitions = {number: Partition(number) for number in numbers}
        self._offsets = dict.fromkeys(self._partitions, 0)
        self._records: list[LogRecord] = []
        self._ticked: dict[int, Envelope] = {}
        self._time_ms = 0
        #: End of the newest slot of which something was folded.
        self._begun_ms = -1

    def slot(self, facts: list[Fact], to_ms: int, *, ends: bool = True) -> list[CensusTaken]:
        """Fold the facts of one grid slot, let time pass to its end, and return what the breaker must hear.

        ``to_ms`` is a grid time; ticks of the slots since the last call that had something due are caught up first. With ``ends``
        false more facts of the slot follow: time does not pass, because a slot has one tick and one census.
        """
        self._ticked = {}
        by_partition: dict[int, list[Fact]] = {}
        for fact in facts:
            by_partition.setdefault(partition_of_fact(fact, self._total), []).append(fact)
        taken = []
        for number, partition in self._partitions.items():
            if to_ms != self._begun_ms:
                self._catch_up(partition, to_ms - TICK_MS)
            waiting = by_partition.get(number)
            if waiting:
                if len(waiting) > 1:
                    waiting.sort(key=arrival_order)
                for fact in waiting:
                    self._log(partition, fact)
            if not ends:
                continue
            if partition.due_ms <= to_ms:
                self._tick(partition, to_ms)
            census = partition.census(to_ms)
            if census is not None:
                self._append(number, self._tick(partition, to_ms), [census])
                taken.append(census)
        self._begun_ms = to_ms
        if ends:
            self._time_ms = to_ms
        return taken

    @property
    def due_ms(self) -> int:
        """When time alone will next move anything, NEVER if it will not."""
        return min((partition.due_ms for partition in self._partitions.values()), default=NEVER)

    def flush_batch(self) -> None:
        """Hand on what is logged once it fills a batch; a worker does so after it told its census, so nobody waits for it."""
        if len(self._records) >= _BATCH_RECORDS:
            self.flush()

    def _catch_up(self, partition: Partition, to_ms: int) -> None:
        while partition.due_ms <= to_ms:
            self._tick(partition, max(on_grid(partition.due_ms), self._time_ms + TICK_MS))
            self._ticked.pop(partition.number, None)

    def _tick(self, partition: Partition, at_ms: int) -> Envelope:
        """Write the tick of ``at_ms`` to a partition, once, and return it."""
        known = self._ticked.get(partition.number)
        if known is not None:
            return known
        envelope = self._log(partition, Tick(node="", observed_at_ms=at_ms, partition=partition.number))
        self._ticked[partition.number] = envelope
        return envelope

    def breaker(self, decisions: Sequence[Decision], at_ms: int) -> None:
        """Log what the breaker decided at ``at_ms`` and let every partition hear of it."""
        home = self._partitions.get(partition_of("", self._total))
        if home is not None:
            self._append(home.number, self._tick(home, at_ms), decisions)
        for decision in decisions:
            if isinstance(decision, BreakerOpened | BreakerClosed):
                for number, partition in self._partitions.items():
                    fact = BreakerStateChanged(
                        node="",
                        observed_at_ms=at_ms,
                        partition=number,
                        scope=decision.scope,
                        open=isinstance(decision, BreakerOpened),
                    )
                    self._log(partition, fact)

    def policy(self, fact: PolicyChanged) -> None:
        """Put a policy in force in every partition."""
        for number, partition in self._partitions.items():
            self._log(partition, msgspec.structs.replace(fact, partition=number))

    def request(self, number: int, fact: Fact) -> None:
        """Fold one fact outside the slots: a request to a store at rest, after what fell due before it."""
        partition = self._partitions[number]
        while partition.due_ms <= fact.observed_at_ms:
            self._ticked = {}
            self._tick(partition, min(on_grid(partition.due_ms), fact.observed_at_ms))
        self._log(partition, fact)

    def take(self, facts: Iterable[Fact]) -> list[CensusTaken]:
        """Fold facts in the order in which they were told, and return what the breaker must hear after the ticks among them.

        Ticks come from outside here; none is added. Those of one time come together, and the last call's are what the breaker's
        decisions follow.
        """
        self._ticked = {}
        taken = []
        for fact in facts:
            partition = self._partitions[partition_of_fact(fact, self._total)]
            envelope = self._log(partition, fact)
            if isinstance(fact, Tick):
                self._ticked[partition.number] = envelope
                census = partition.census(fact.observed_at_ms)
                if census is not None:
                    self._append(partition.number, envelope, [census])
                    taken.append(census)
        return taken

    def _log(self, partition: Partition, fact: Fact) -> Envelope:
        envelope = wrap_fact(fact)
        number = partition.number
        offset = self._offsets[number]
        self._records.append(LogRecord(number, offset, envelope, encode(envelope), b"", fact))
        self._offsets[number] = offset + 1
        decisions = partition.step(fact)
        if decisions:
            self._append(number, envelope, decisions)
        return envelope

    def _append(self, number: int, cause: Envelope, decisions: Sequence[Decision]) -> None:
        policy = self._partitions[number].policy_hash
        for ordinal, decision in enumerate(decisions):
            envelope = wrap_decision(decision, cause, ordinal, policy)
            offset = self._offsets[number]
            self._records.append(LogRecord(number, offset, envelope, encode(envelope), b"", decision))
            self._offsets[number] = offset + 1

    def flush(self) -> None:
        """Hand on what is logged and not handed on yet."""
        if self._records:
            records, self._records = self._records, []
            self._write(records)

    def restore(
        self, records: Iterable[LogRecord], open_event: Callable[[Envelope], Fact | Decision]
    ) -> None:
        """Take in the log of a partition as it stands, deciding nothing."""
        for record in records:
            event = record.event if record.event is not None else open_event(record.envelope)
            self._partitions[record.partition].replay(event)
            self._offsets[record.partition] = record.offset + 1

    @property
    def partitions(self) -> dict[int, Partition]:
        """The partitions by number."""
        return self._partitions


def partition_of_fact(fact: Fact, total: int) -> int:
    """Return the partition of a fact: its own for what every partition hears, else that of its node."""
    number: int | None = getattr(fact, "partition", None)
    return partition_of(fact.node, total) if number is None else number
