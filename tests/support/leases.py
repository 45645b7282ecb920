"""The one Lease of an API server that several electors speak to, with the answers that go wrong."""

from __future__ import annotations

import asyncio
import copy

from sickbay.cluster.leading import Conflict
from sickbay.errors import ServiceError


class LeaseServer:
    """One Lease with a resourceVersion; ``lease`` is it, ``None`` when there is none."""

    def __init__(self) -> None:
        self.lease = None
        self.rv = 0

    def keep(self, lease):
        self.rv += 1
        self.lease = copy.deepcopy(lease)
        self.lease["metadata"]["resourceVersion"] = str(self.rv)
        return copy.deepcopy(self.lease)

    def delete(self):
        self.lease = None


class LeaseLine:
    """One elector's line to it. ``paused`` stops its process, ``down`` cuts the line, ``deaf`` loses the answers."""

    name = "sickbay-ingest"

    def __init__(self, server: LeaseServer, latency_s: float = 0.01) -> None:
        self.server = server
        self.latency_s = latency_s
        self.paused = self.down = self.deaf = False

    async def _go(self, work):
        await self.sleep(self.latency_s)
        if self.down:
            raise ServiceError("the line is cut")
        try:
            return work()
        finally:
            await self.sleep(self.latency_s)
            if self.deaf:
                await asyncio.sleep(3_600)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        while self.paused:  # noqa: ASYNC110 - it is set from the outside
            await asyncio.sleep(0.05)

    async def read(self):
        return await self._go(lambda: copy.deepcopy(self.server.lease))

    async def create(self, lease):
        def work():
            if self.server.lease is not None:
                raise Conflict
            return self.server.keep(lease)

        return await self._go(work)

    async def replace(self, lease):
        def work():
            kept = self.server.lease
            if kept is None or lease["metadata"]["resourceVersion"] != kept["metadata"]["resourceVersion"]:
                raise Conflict
            return self.server.keep(lease)

        return await self._go(work)
