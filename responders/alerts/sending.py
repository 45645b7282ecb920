"""Telling: keep the new states, send them to every sink, keep who was told. Level-triggered, at least once, the same id each time.

Each sink has a courier of its own, so that one that is down or slow keeps nobody else waiting. There is no queue: what a sink is
owed is asked of the book, whose newest state of an alert replaces the one before. Only ``Teller.act`` writes to the memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from responders.alerts.book import Book, Entry, Notice
from responders.alerts.plan import Plan
from responders.alerts.sinks import Sink
from responders.alerts.topic import Memory
from sickbay.clock import Times
from sickbay.operations.failpoints import reach
from sickbay.operations.health import Told
from sickbay.operations.respond_metrics import RespondMetrics

#: Pauses between the attempts of one delivery. They outlast a restart of a receiver behind a service, and no more: longer ones
#: would keep what changed meanwhile.
PAUSES_S: Final = (0.5, 2.0)
#: After a delivery that failed. Readiness has said so by then, and another attempt is cheap.
AFTER_FAILURE_S: Final = 15.0

_log: Final = logging.getLogger(__name__)


class Courier:
    """Brings one sink to where the book is, again and again, until it is cancelled."""

    def __init__(
        self,
        sink: Sink,
        book: Book,
        times: Times,
        metrics: RespondMetrics,
        resend_ms: int,
        poke: Callable[[], None],
    ) -> None:
        self._sink, self._book, self._times, self._metrics = sink, book, times, metrics
        self._resend_ms, self._poke = resend_ms, poke
        self._wanted = asyncio.Event()
        self._repeated_ms: int | None = None
        self.check: Final = Told(sink.name, None)

    def wake(self) -> None:
        """Something may be owed."""
        self._wanted.set()

    async def run(self) -> None:
        """Deliver until cancelled, and not before the first ``wake``: before that nobody knows what is true."""
        await self._wanted.wait()
        while True:
            self._wanted.clear()
            if await self._deliver():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._rest_s()):
                        await self._wanted.wait()
            else:
                await asyncio.sleep(AFTER_FAILURE_S)

    async def _deliver(self) -> bool:
        """Send what is owed, and what must be repeated; return whether all of it was taken."""
        rest = self._book.owed(self._sink.name)
        rest_s = self._rest_s()
        repeats = rest_s is not None and rest_s <= 0
        if repeats:
            owed = {notice.alert_id for notice in rest}
            rest += [notice for notice in self._book.standing() if notice.alert_id not in owed]
        problem = ""
        for pause_s in (0.0, *PAUSES_S):
            if not rest:
                break
            await asyncio.sleep(pause_s)
            sent = await self._sink.send(rest)
            self._note(sent.taken)
            taken = {notice.alert_id for notice in sent.taken}
            rest = [notice for notice in rest if notice.alert_id not in taken]
            problem = sent.problem
        if rest:
            self._metrics.done(self._sink.effect, "failed")
            _log.warning("%d alerts were not told, and are tried again: %s", len(rest), problem)
            self.check.failed(f"{len(rest)} alerts were not told: {problem}")
            return False
        if repeats:
            self._repeated_ms = self._times.monotonic_ms()
        self.check.ready()
        return True

    def _note(self, taken: Sequence[Notice]) -> None:
        now_ms = self._times.now_ms()
        owed = {notice.version for notice in self._book.owed(self._sink.name)}
        for notice in taken:
            if notice.version in owed:  # the others are repeats
                self._book.told(self._sink.name, notice)
                self._metrics.done(self._sink.effect, "sent", (now_ms - notice.version) / 1000)
        if owed and taken:
            self._poke()

    def _rest_s(self) -> float | None:
        """Seconds until what stands must be repeated, ``None`` for a sink that needs no repeats."""
        if not self._sink.repeats:
            return None
        if self._repeated_ms is None:
            return 0.0
        return (self._repeated_ms + self._resend_ms - self._times.monotonic_ms()) / 1000


class Teller:
    """Compares what should stand with what was told, keeps the difference and has it sent."""

    def __init__(
        self,
        planned: Callable[[int], Plan],
        book: Book,
        memory: Memory,
        couriers: Sequence[Courier],
        times: Times,
        metrics: RespondMetrics,
    ) -> None:
        self._planned, self._book, self._memory = planned, book, memory
        self._couriers, self._times, self._metrics = couriers, times, metrics
        self._tasks: list[asyncio.Task[None]] = []
        #: States of the newest look until they are kept for certain: a broker may have taken what it did not acknowledge.
        self._pending: list[Notice] = []

    def start(self) -> None:
        """Start the couriers."""
        self._tasks = [
            asyncio.create_task(courier.run(), name=courier.check.name) for courier in self._couriers
        ]

    async def close(self) -> None:
        """End them; what they did not note is sent again by the next process, under the same ids."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def act(self) -> float | None:
        """Look once; return after how many seconds to look again. Raises ServiceError when nothing can be kept."""
        for task in self._tasks:
            if task.done():
                task.result()
        await self._keep_pending()
        now_ms = self._times.now_ms()
        self._pending = self._book.look(self._planned(now_ms), now_ms)
        await self._keep_pending()
        self._metrics.stands("alerts", len(self._book.standing()))
        for courier in self._couriers:
            courier.wake()
        return None if self._book.due_ms is None else max(0.0, (self._book.due_ms - now_ms) / 1000)

    async def _keep_pending(self) -> None:
        """Keep the states of a look, then let the couriers have them; and keep who was told of earlier ones."""
        if self._pending:
            reach("alert.planned")
            await self._memory.keep({notice.alert_id: Entry(notice=notice) for notice in self._pending})
            reach("alert.kept")
            self._book.take(self._pending)
            for notice in self._pending:
                _log.info("alert %s: %s", notice.change, notice.alert_id, extra={"severity": notice.severity})
            self._pending = []
        entries = self._book.unkept()
        if entries:
            await self._memory.keep(entries)
            self._book.kept(entries)
            reach("alert.noted")
