"""Leader election over the API server: one process of a kind writes, the others wait (faults I1).

client-go says of its own election that it "does not guarantee that only one client is acting as leader": a process that was
stopped and wakes believes what it believed. So a leader asks before every write whether its last renewal is young enough, and
every record carries the number of its leadership; what was on its way is discarded by whoever reads it. Losing the Lease ends
the process: it starts again from the log, which its successor has written on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from sickbay.clock import Times
from sickbay.cluster.lease import (
    LEASE_MS,
    RENEW_DEADLINE_MS,
    RETRY_MS,
    Seen,
    looked,
    made,
    next_step,
    renewed,
    taken,
    transitions_of,
)
from sickbay.errors import ServiceError
from sickbay.timestamps import format_time_ms

_log: Final = logging.getLogger(__name__)

#: How long one request for the Lease may take: two fit into the renew deadline.
REQUEST_TIMEOUT_S: Final = 4.0


class Conflict(Exception):  # noqa: N818 - it is an answer and no failure
    """The Lease is not what was read any more, or exists already."""


class Leases(Protocol):
    """The one Lease, as the API server keeps it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    async def read(self) -> dict[str, Any] | None:
        """Return it, ``None`` when there is none. Raises ServiceError."""
        ...

    async def create(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Make it; return it as it is kept. Raises Conflict and ServiceError."""
        ...

    async def replace(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Write it over the version that it names; return it as it is kept. Raises Conflict and ServiceError."""
        ...


class Elector:
    """The candidature of one process. ``identity`` must be unique to it: a process that is started again is another one."""

    def __init__(
        self,
        leases: Leases,
        identity: str,
        *,
        times: Times,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._leases = leases
        self._identity = identity
        self._times = times
        self._sleep = sleep
        self._seen: Seen | None = None
        self._lease: dict[str, Any] = {}
        self._renewed_ms: int | None = None
        self._writing = asyncio.Lock()

    @property
    def leads(self) -> bool:
        """Whether this process may write now."""
        return (
            self._renewed_ms is not None and self._times.monotonic_ms() - self._renewed_ms < RENEW_DEADLINE_MS
        )

    @property
    def epoch(self) -> int:
        """The number of this leadership, as the Lease has it."""
        return transitions_of(self._lease)

    def require(self) -> None:
        """Raise ServiceError unless this process may write now."""
        if not self.leads:
            raise ServiceError(
                f"the Lease {self._leases.name} was not renewed for {RENEW_DEADLINE_MS // 1000} s or is held by another process;"
                " this one stops, and waits for its turn when it is started again"
            )

    async def acquire(self, at_least: int = 1) -> int:
        """Wait until this process leads and return the number of its leadership, ``at_least`` or more.

        An API server that cannot be reached is waited for.
        """
        while True:
            try:
                if await self._try(at_least):
                    _log.info("leading as %s, number %d", self._identity, self.epoch)
                    return self.epoch
            except (ServiceError, TimeoutError) as error:
                _log.warning("the Lease %s: %s", self._leases.name, str(error) or "no answer")
            await self._sleep(RETRY_MS / 1000)

    async def _try(self, at_least: int) -> bool:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            lease = await self._leases.read()
        now_ms = self._times.monotonic_ms()
        self._seen = looked(self._seen, lease, now_ms)
        step = next_step(self._seen, self._identity, now_ms, renewed_ms=None)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                if lease is None:
                    await self._leases.create(made(self._leases.name, self._identity, self._now()))
                elif step == "acquire":
                    self._lease = await self._leases.replace(
                        taken(lease, self._identity, self._now(), at_least)
                    )
                    self._renewed_ms = now_ms
        except Conflict:
            return False  # another was faster
        return self._renewed_ms is not None

    async def raise_to(self, epoch: int) -> None:
        """Make this leadership's number ``epoch`` if it is lower: a Lease that was deleted counts from the beginning again.

        Raises ServiceError when the Lease is lost.
        """
        await self._renew(epoch)
        while self.epoch < epoch:
            await self._sleep(RETRY_MS / 1000)
            await self._renew(epoch)

    async def keep(self) -> None:
        """Renew for as long as that works; raises ServiceError when this process does not lead any more."""
        while True:
            await self._sleep(RETRY_MS / 1000)
            await self._renew(1)

    async def _renew(self, epoch: int) -> None:
        async with self._writing:
            self.require()
            sent_ms = self._times.monotonic_ms()
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await self._write_again(max(epoch, self.epoch), sent_ms)
            except (ServiceError, TimeoutError) as error:
                _log.warning("the Lease %s was not renewed: %s", self._leases.name, str(error) or "no answer")
            self.require()

    async def _write_again(self, epoch: int, sent_ms: int) -> None:
        try:
            await self._replace(epoch)
        except Conflict:
            # somebody wrote: we, in a request whose answer was lost, a person, or a new holder
            lease = await self._leases.read()
            now_ms = self._times.monotonic_ms()
            step = next_step(Seen(lease, now_ms), self._identity, now_ms, renewed_ms=self._renewed_ms)
            if lease is None or step == "lost":
                self._renewed_ms = None
                return
            self._lease = lease
            try:
                await self._replace(epoch)
            except Conflict:
                return
        self._renewed_ms = sent_ms

    async def _replace(self, epoch: int) -> None:
        self._lease = await self._leases.replace(renewed(self._lease, self._identity, self._now(), epoch))

    async def release(self) -> None:
        """Give the Lease back, so that nobody waits for it to run out; only after the last write. Never raises for a Lease."""
        async with self._writing:
            if not self.leads:
                return
            self._renewed_ms = None
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await self._leases.replace(renewed(self._lease, "", self._now(), self.epoch))
            except (Conflict, ServiceError, TimeoutError) as error:
                _log.info(
                    "the Lease %s was not given back (%s); it runs out in %d s",
                    self._leases.name,
                    error,
                    LEASE_MS // 1000,
                )

    def _now(self) -> str:
        """Return the time as a MicroTime, which has six digits: for people to read, it decides nothing."""
        return f"{format_time_ms(self._times.now_ms())[:-1]}000Z"
