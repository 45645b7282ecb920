"""Feeding a fact log, until asked to stop: from the watch of a cluster or from recordings, alone or as the leader of several.

``sickbay ingest`` and ``sickbay run --embedded`` differ in the log and in nothing else. Here stands what is brought together
and in which order; it holds no rule of its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ingest.frames import Frame, Parked
from ingest.ingester import Ingester
from ingest.ports import FactLog
from ingest.recorded import recorded_items
from ingest.ticker import Beat, Item, live_items
from sickbay.cli.folding import TICK_MS
from sickbay.cluster.leading import Elector
from sickbay.cluster.lease_api import ApiLeases
from sickbay.operations.health import Check, Told
from sickbay.operations.http import HOST_DEFAULT, HealthServer
from sickbay.operations.live_clock import LiveClock, elapsed_ns
from sickbay.operations.metrics import new_registry
from sickbay.operations.running import Stop
from sickbay.operations.stage_metrics import IngestMetrics
from sickbay.policy import Policy

if TYPE_CHECKING:
    from sickbay.cluster.client import ApiClient

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Where facts come from, and how this process is seen."""

    #: ``ingest`` or ``run``.
    process: str
    policy: Policy
    #: Instead of a cluster.
    recordings: tuple[str, ...] = ()
    speed: float = 1.0
    kubeconfig: str | None = None
    context: str | None = None
    #: Namespace of the Lease, ``None`` for a process that is the only one.
    lease_namespace: str | None = None
    http_host: str = HOST_DEFAULT
    #: 0 for no server.
    http_port: int = 0


class Feeding:
    """One run. ``parked`` and ``passed_over`` count what could not be used, and what was told before."""

    def __init__(self, log: FactLog, feed: Feed, checks: Sequence[Check] = ()) -> None:
        self._log = log
        self._feed = feed
        self._clock = LiveClock()
        self._registry = new_registry(feed.process)
        self._metrics = IngestMetrics(self._registry, self._clock)
        self._metrics.count_waiting(lambda: log.waiting)
        self._ready = Told("log")
        self._watch = _WatchCheck()
        self._checks: list[Check] = [self._ready, self._watch, *checks]
        self._ingester = Ingester(log, feed.policy, self._metrics, guard=self._guard)
        self._elector: Elector | None = None
        #: Resource to its lists that were counted.
        self._relists: Counter[str] = Counter()

    @property
    def parked(self) -> int:
        """What could not be used."""
        return self._ingester.parked

    @property
    def passed_over(self) -> int:
        """Facts that were told before."""
        return self._ingester.passed_over

    @property
    def may_write(self) -> bool:
        """Whether what the log took may still be sent: not by who lost the Lease."""
        return self._elector is None or self._elector.leads

    def _guard(self) -> None:
        if self._elector is not None:
            self._elector.require()

    async def run(self, stop: Stop) -> None:
        """Feed until the source ends or ``stop`` is requested; the log is closed then, with everything kept that it took.

        Raises SickbayError, also in an ExceptionGroup; what was not acknowledged is told again by the next run.
        """
        async with AsyncExitStack() as stack:
            client: ApiClient | None = None
            if not self._feed.recordings:
                from sickbay.cluster.client import (
                    ApiClient,  # a recording needs none of it, and it takes a second
                )

                client = await ApiClient.connect(self._feed.kubeconfig, self._feed.context)
                stack.push_async_callback(client.close)
                if self._feed.lease_namespace is not None:
                    leases = ApiLeases(client, self._feed.lease_namespace)
                    self._elector = Elector(leases, _identity(), times=self._clock)
            if self._feed.http_port:
                server = HealthServer(
                    self._registry, self._checks, host=self._feed.http_host, port=self._feed.http_port
                )
                await stack.enter_async_context(server)
            async with asyncio.TaskGroup() as group:
                await self._lead_and_feed(client, stop, group)
            # only when all went well: who lost the Lease must not send what still waits
            await self._log.close()
            if self._elector is not None:
                await self._elector.release()

    async def _lead_and_feed(self, client: ApiClient | None, stop: Stop, group: asyncio.TaskGroup) -> None:
        ingest_epoch = 1
        keeping: asyncio.Task[None] | None = None
        if self._elector is not None:
            self._ready.ready()  # to take over
            acquired = await _unless_stopped(self._elector.acquire(), stop)
            if acquired is None:
                return
            ingest_epoch = acquired
            keeping = group.create_task(self._elector.keep(), name="lease")
        try:
            self._ready.failed("what was told is being read back")
            newest_epoch = await _unless_stopped(self._ingester.recall(live=client is not None), stop)
            if newest_epoch is None:
                return
            ingest_epoch = max(ingest_epoch, newest_epoch + 1)
            if self._elector is not None:
                await self._elector.raise_to(ingest_epoch)
            self._log.lead(ingest_epoch)
            self._metrics.leads(ingest_epoch)
            async with aclosing(self._items(client)) as items, aclosing(_until_stopped(items, stop)) as some:
                self._ready.ready()
                await self._ingester.run(some)
        finally:
            self._metrics.leads(None)
            if keeping is not None:
                keeping.cancel()

    def _items(self, client: ApiClient | None) -> AsyncGenerator[Item, None]:
        if client is not None:
            return self._watched(client)
        return recorded_items(
            self._feed.recordings,
            interval_ms=TICK_MS,
            speed=self._feed.speed,
            paced_from_ms=self._ingester.told.ticked_ms,
            monotonic_ms=self._clock.monotonic_ms,
        )

    async def _watched(self, client: ApiClient) -> AsyncGenerator[Item, None]:
        from ingest.sight import Sight
        from ingest.steps import Timing
        from ingest.watching import Watch

        told = self._ingester.told
        if told.ticked_ms is not None:
            self._clock.begin_after(told.ticked_ms)
        timing = Timing()
        watch = Watch(client, self._clock, versions=told.versions, timing=timing)
        sight = Sight(watch.status, self._clock, timing.idle_ms)
        self._watch.sight = sight
        async with (
            aclosing(cast("AsyncGenerator[Frame | Parked, None]", watch.frames())) as frames,
            aclosing(live_items(frames, times=self._clock, watches=sight.heard)) as items,
        ):
            async for item in items:
                if isinstance(item, Beat):
                    self._count_relists({name: status.relists for name, status in watch.status().items()})
                yield item
                sight.took(item)

    def _count_relists(self, relists: Mapping[str, int]) -> None:
        for resource, count in relists.items():
            for _ in range(count - self._relists[resource]):
                self._metrics.relisted(resource)
            self._relists[resource] = count


class _WatchCheck:
    """Whether the cluster is seen, once somebody looks: a recording, and a replica that waits for its turn, see nothing."""

    name = "watch"

    def __init__(self) -> None:
        self.sight: Check | None = None

    def problem(self) -> str | None:
        return None if self.sight is None else self.sight.problem()


async def _unless_stopped(work: Coroutine[Any, Any, Result], stop: Stop) -> Result | None:
    """Return what ``work`` gives, ``None`` when the end was asked for before."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopping.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)


async def _until_stopped(items: AsyncIterator[Item], stop: Stop) -> AsyncGenerator[Item, None]:
    """Yield the items up to where the end is asked for."""
    stopping = asyncio.ensure_future(stop.wait())
    coming: asyncio.Future[Item] | None = None
    try:
        while not stop.requested:
            coming = asyncio.ensure_future(anext(items))
            await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return
            try:
                item = coming.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        stopping.cancel()
        if coming is not None:
            coming.cancel()
        await asyncio.gather(*(task for task in (coming, stopping) if task), return_exceptions=True)


def _identity() -> str:
    """Return who this process is, unlike every other, also one of the same name that was killed."""
    return f"{socket.gethostname()}_{os.getpid()}_{elapsed_ns():x}"
