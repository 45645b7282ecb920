"""The ingester: frames in order, through the mirror, into the log; and nothing kept anywhere else (faults I2 to I4).

What it knew when it stopped it reads back from the log, so there is no saved position that could run ahead of what was kept.
A frame is applied only when the log took the facts of every frame before it; when the log fails, the process ends and begins
from what the log holds. It decides nothing, and it does not know whether its log is Kafka or a store in the same process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from ingest.diff import Mirror
from ingest.frames import FactFrame, Frame, Parked
from ingest.ports import FactLog
from ingest.recollection import Recollection
from ingest.ticker import Beat, Item, ticks
from sickbay.deadletters import VALUE_BYTES_MAX, DeadLetter
from sickbay.facts import BreakerStateChanged, Fact, PolicyChanged, Tick
from sickbay.operations.failpoints import reach
from sickbay.operations.stage_metrics import IngestMetrics
from sickbay.policy import Policy
from sickbay.timestamps import format_time_ms

_log: Final = logging.getLogger(__name__)

#: Facts that the log is given at a time: one list of a large cluster holds a hundred thousand.
_PUBLISH_FACTS: Final = 2_000


class Ingester:
    """One run over one source. ``guard`` raises when this process may not write any more; it is asked before every write."""

    def __init__(
        self,
        log: FactLog,
        policy: Policy,
        metrics: IngestMetrics,
        *,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._policy = policy
        self._metrics = metrics
        self._guard = guard
        self._mirror = Mirror(policy.reading, log.partitions)
        self._told = Recollection(())
        #: Up to this tick a recording was told, while it is still being passed over.
        self._passing_ms: int | None = None
        self._in_force = False
        #: Kinds of facts that the log took and may not have kept yet.
        self._taken: Counter[str] = Counter()
        #: Facts that the log kept in this run.
        self._kept = 0
        #: Facts of a recording that were told before it was begun again.
        self.passed_over = 0
        #: What could not be used.
        self.parked = 0

    @property
    def told(self) -> Recollection:
        """What was told before this run; empty until ``recall``."""
        return self._told

    @property
    def mirror(self) -> Mirror:
        """The known set, for its counters."""
        return self._mirror

    async def recall(self, *, live: bool) -> int:
        """Read back what was told, and return the highest ingest epoch that wrote any of it.

        A live source goes on from the known set; a recording is read again from its beginning. Raises ServiceError or
        StoreError.
        """
        memory = await self._log.recall()
        facts = await asyncio.to_thread(list, memory.facts)
        self._told = await asyncio.to_thread(Recollection, facts, subjects=not live)
        if live:
            await asyncio.to_thread(self._mirror.recall, facts, self._told.seen_ms)
        else:
            self._passing_ms = self._told.ticked_ms
        seen_ms = self._told.seen_ms
        newest = "nothing was seen yet" if seen_ms is None else f"the newest of {format_time_ms(seen_ms)}"
        _log.info("recalled %d facts, %s", len(facts), newest)
        return memory.ingest_epoch

    async def run(self, items: AsyncIterator[Item]) -> None:
        """Go through the items to their end, and wait until everything is kept.

        Raises what the log and the guard raise; what was not acknowledged counts as not told then.
        """
        async for item in items:
            if isinstance(item, Parked):
                await self._park([item])
            elif isinstance(item, Beat):
                await self._beat(item)
            else:
                await self._frame(item)
        await self._drain()
        _log.info(
            "the end: %d facts were told, %d were known before, %d things were parked",
            self._kept,
            self.passed_over,
            self.parked,
        )

    async def _frame(self, frame: Frame | FactFrame) -> None:
        if not self._in_force:
            await self._put_policy_in_force(frame.at_ms)
        facts = await self._observe(frame)
        if not facts:
            return
        if self._passing_ms is not None:
            if self._told.covers(facts):
                self.passed_over += len(facts)
                return
            _log.warning("%s: the log does not know this; told from here on", frame.place)
            self._passing_ms = None
        await self._publish(facts)

    async def _observe(self, frame: Frame | FactFrame) -> list[Fact]:
        if isinstance(frame, FactFrame):
            return self._recorded(frame.fact)
        if frame.resource:
            self._metrics.read(frame.resource)
        # a list of a large cluster takes seconds, in which the Lease must be renewed and health be answered for
        facts = (
            await asyncio.to_thread(self._mirror.apply, frame)
            if frame.type == "LIST"
            else self._mirror.apply(frame)
        )
        parked = self._mirror.drain_parked()
        if parked:
            await self._park(parked)
        return facts

    def _recorded(self, fact: Fact) -> list[Fact]:
        """Return a fact of a dump as this run tells it: time, policy and breaker are its own."""
        if isinstance(fact, Tick | PolicyChanged | BreakerStateChanged):
            return []
        number: int | None = getattr(fact, "partition", None)
        if number is None:
            return [fact]
        if number != 0:
            return []
        return [msgspec.structs.replace(fact, partition=n) for n in range(self._log.partitions)]

    async def _beat(self, beat: Beat) -> None:
        if self._passing_ms is not None:
            if beat.at_ms < self._passing_ms:
                return
            self._passing_ms = None
        # so that the newest tick says how far everything is kept
        await self._drain()
        await self._publish(ticks(beat.at_ms, self._log.partitions))

    async def _put_policy_in_force(self, at_ms: int) -> None:
        """Tell the partitions that were last told another policy. Each is asked for itself: a kill may part them."""
        self._in_force = True
        wanted = self._policy.hash()
        at_ms = self._told.after_everything(at_ms)
        await self._publish(
            [
                PolicyChanged.to(self._policy, at_ms, number)
                for number in range(self._log.partitions)
                if self._told.policy_of(number) != wanted
            ]
        )

    async def _publish(self, facts: Sequence[Fact]) -> None:
        for first in range(0, len(facts), _PUBLISH_FACTS):
            part = facts[first : first + _PUBLISH_FACTS]
            self._guard()
            reach("ingester.publish")
            await self._log.publish(part)
            reach("ingester.published")
            self._taken.update(fact.KIND for fact in part)
            if not self._log.waiting:
                self._count_kept()

    async def _drain(self) -> None:
        await self._log.drain()
        self._count_kept()

    def _count_kept(self) -> None:
        for kind, count in self._taken.items():
            self._metrics.published(kind, count)
            self._kept += count
        self._taken.clear()

    async def _park(self, parked: Sequence[Parked]) -> None:
        self._guard()
        await self._log.park([_letter(item) for item in parked])
        self.parked += len(parked)
        self._metrics.parked(len(parked))


def _letter(parked: Parked) -> DeadLetter:
    raw = parked.raw.encode("utf-8", "backslashreplace")
    return DeadLetter(
        place=parked.place,
        reason=parked.reason,
        at_ms=parked.at_ms,
        value=raw[:VALUE_BYTES_MAX],
        value_bytes=len(raw),
    )
