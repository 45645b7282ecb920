"""The watch of a cluster: one task per resource carries out what its reflector says, all hand their frames to one reader.

This is a thin shell: it knows paths, time limits and the order of things, and no rule of list and watch. It must not read
faster than its reader takes: what waits is bounded in number and bytes, and then nothing more is read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from random import SystemRandom
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from ingest.frames import RESOURCES, Frame, Parked
from ingest.listing import LIST_BYTES_MAX
from ingest.pruning import prune
from ingest.reflector import Reflector
from ingest.steps import Draw, FetchPage, Heard, OpenWatch, Output, Timing, Wait
from sickbay.clock import Clock, SystemClock
from sickbay.cluster.client import READ_S, ApiClient, BodyTooLargeError, Stream, UnreachableError
from sickbay.cluster.wire import decode_json
from sickbay.errors import ServiceError

_log: Final = logging.getLogger(__name__)

_GROUP: Final = "/apis/resource.k8s.io"
#: Of the versions that a cluster serves, the first here is read.
_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
_PATHS: Final = {
    "pods": "/api/v1/pods",
    "nodes": "/api/v1/nodes",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
}
#: Whose first lists come before all others, in this order: a claim is where its devices are, and a claim that is new is joined
#: to what its Pod says now and not to what it said before a restart (``ingest.diff.recalling``).
_FIRST: Final = ("resourceslices", "pods")
#: Frames, and bytes they came in, that may wait for the reader.
_FRAMES_MAX: Final = 256
_WAITING_BYTES_MAX: Final = 32 << 20
#: The longest page; a list that is not cut into pages may be longer.
_PAGE_BYTES_MAX: Final = 64 << 20
_ERROR_BYTES_MAX: Final = 1 << 20

Item: TypeAlias = Frame | Parked


class WatchClock(Clock, Protocol):
    """Wall time for what is told, monotonic time for how long things take (I9)."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed point."""
        ...


class SystemWatchClock(SystemClock):
    """The machine's own clocks."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed point."""
        return time.monotonic_ns() // 1_000_000


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How the watch of one resource stands."""

    state: Literal["listing", "watching", "waiting", "stale", "unavailable"]
    #: What went wrong last, "" when nothing did since the last success.
    reason: str
    #: Since the server last said anything of it; ``None`` before that.
    age_ms: int | None
    #: The newest version that was delivered.
    version: int
    #: LISTs after the first, watches opened after the first.
    relists: int
    reconnects: int
    bytes_read: int


class Watch:
    """The watch of all ``resources``; ``versions`` says up to which version each was told before, so that none goes back (W4)."""

    def __init__(
        self,
        client: ApiClient,
        clock: WatchClock,
        *,
        resources: Iterable[str] = RESOURCES,
        versions: Mapping[str, int] | None = None,
        timing: Timing | None = None,
        draw: Draw | None = None,
        watch_list: bool = False,
    ) -> None:
        self._outbox = _Outbox(_FRAMES_MAX, _WAITING_BYTES_MAX)
        self._timing = timing or Timing()
        known = versions or {}
        self._followers = {
            resource: _Follower(
                resource,
                client,
                clock,
                self._outbox,
                Reflector(
                    self._timing,
                    draw or SystemRandom().randint,
                    partial(prune, resource),
                    version=known.get(resource, 0),
                    watch_list=watch_list,
                ),
            )
            for resource in resources
        }

    async def frames(self) -> AsyncIterator[Item]:
        """Yield what is heard, in order for each resource, until cancelled; call it once.

        A reader that may leave its loop otherwise closes the generator (``contextlib.aclosing``), or the reading goes on.
        Raises ServiceError when the configuration can never work. Everything else is waited for, and shows in ``status``.
        """
        followers = [
            asyncio.create_task(self._run(resource), name=f"watch-{resource}") for resource in self._followers
        ]
        waiting: list[asyncio.Task[None]] = []
        try:
            while True:
                if self._outbox.is_empty:
                    waiting = [asyncio.create_task(self._outbox.wait())]
                    await asyncio.wait({*waiting, *followers}, return_when=asyncio.FIRST_COMPLETED)
                    for follower in followers:
                        if follower.done():
                            follower.result()
                else:
                    yield self._outbox.take()
        finally:
            await _cancelled(*followers, *waiting)

    async def _run(self, resource: str) -> None:
        """Follow a resource once the first lists that come before its own are handed over, or are not to be had soon."""
        before = _FIRST[: _FIRST.index(resource)] if resource in _FIRST else _FIRST
        for other in before:
            if other in self._followers:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._timing.turn_ms / 1000):
                        await self._followers[other].begun.wait()
        await self._followers[resource].run()

    def status(self) -> dict[str, Status]:
        """Return how every resource stands now."""
        return {resource: follower.status() for resource, follower in self._followers.items()}


class _Outbox:
    """Frames that wait for the reader. One that is larger than all may be waits alone."""

    def __init__(self, frames_max: int, bytes_max: int) -> None:
        self._queue: asyncio.Queue[tuple[Item, int]] = asyncio.Queue(frames_max)
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()

    async def put(self, item: Item, size: int) -> None:
        while self._bytes and self._bytes + size > self._bytes_max:
            self._changed.clear()
            await self._changed.wait()
        self._bytes += size
        await self._queue.put((item, size))
        self._changed.set()

    def take(self) -> Item:
        item, size = self._queue.get_nowait()
        self._bytes -= size
        self._changed.set()
        return item

    async def wait(self) -> None:
        """Wait until there is something to take."""
        while self._queue.empty():
            self._changed.clear()
            await self._changed.wait()


class _Follower:
    """Carries out the steps of one reflector."""

    def __init__(
        self, resource: str, client: ApiClient, clock: WatchClock, outbox: _Outbox, reflector: Reflector
    ) -> None:
        self._resource = resource
        self._client = client
        self._clock = clock
        self._outbox = outbox
        self._reflector = reflector
        #: "" while it is not known which version of the API is served.
        self._path = _PATHS.get(resource, "")
        #: Set when its first list was handed over, or when the server refuses it.
        self.begun = asyncio.Event()

    def status(self) -> Status:
        reflector = self._reflector
        heard_ms = reflector.heard_ms
        return Status(
            state=reflector.state.name,
            reason=reflector.state.reason,
            age_ms=None if heard_ms is None else max(0, self._clock.monotonic_ms() - heard_ms),
            version=reflector.version,
            relists=max(0, reflector.lists - 1),
            reconnects=max(0, reflector.watches - 1),
            bytes_read=reflector.bytes_read,
        )

    async def run(self) -> None:
        """Follow the resource until cancelled. Raises ServiceError for a configuration that can never work."""
        told = self._reflector.state
        while True:
            step = self._reflector.next_step()
            try:
                if isinstance(step, Wait):
                    await self._wait(step)
                elif self._path or await self._discover():
                    await (self._fetch(step) if isinstance(step, FetchPage) else self._watch(step))
            except (UnreachableError, TimeoutError) as error:
                reason = str(error) or "no answer in time"
                if self._reflector.streaming:
                    self._reflector.ended(self._clock.monotonic_ms(), reason)
                else:
                    self._reflector.request_failed(reason)
            if self._reflector.state.name in ("stale", "unavailable"):
                self.begun.set()
            if self._reflector.state != told:
                told = self._reflector.state
                _log.info("watch of %s: %s %s", self._resource, told.name, told.reason)

    async def _wait(self, step: Wait) -> None:
        await asyncio.sleep(step.ms / 1000)
        if step.discover:
            self._path = _PATHS.get(self._resource, "")
        if step.reload:
            try:
                await self._client.reload()
            except ServiceError as error:
                # the old credentials are refused and there are no new ones yet: the view is stale until there are
                _log.warning("watch of %s: %s", self._resource, error)

    async def _discover(self) -> bool:
        """Find the version of the API; when there is none, the reflector hears of it as of any refusal."""
        code, headers, body = await self._client.get(_GROUP, (), _ERROR_BYTES_MAX)
        version = _served(body) if code == 200 else ""
        if version:
            self._path = f"{_GROUP}/{version}/{self._resource}"
            return True
        if code == 200:
            code, body = 404, _NOT_SERVED
        await self._deliver(self._reflector.refused(code, headers, body, self._clock.monotonic_ms()))
        return False

    async def _fetch(self, step: FetchPage) -> None:
        paginated = any(name == "limit" for name, _ in step.query)
        limit = _PAGE_BYTES_MAX if paginated else LIST_BYTES_MAX
        try:
            code, headers, body = await self._client.get(self._path, step.query, limit)
        except BodyTooLargeError:
            self._reflector.page_too_large(limit)
        else:
            await self._deliver(self._reflector.page(code, headers, body, self._clock.monotonic_ms()))

    async def _watch(self, step: OpenWatch) -> None:
        async with self._client.stream(self._path, step.query) as answer:
            if answer.status == 200:
                self._reflector.opened(self._clock.monotonic_ms())
                await self._follow(answer)
            else:
                async with asyncio.timeout(READ_S):
                    body = await answer.read_all(_ERROR_BYTES_MAX)
                await self._deliver(
                    self._reflector.refused(answer.status, answer.headers, body, self._clock.monotonic_ms())
                )

    async def _follow(self, answer: Stream) -> None:
        """Read the stream until it ends or is not wanted any more, with probes beside it."""
        reflector, clock = self._reflector, self._clock
        reading: asyncio.Task[bytes] | None = None
        probing: asyncio.Task[tuple[int, Mapping[str, str], bytes]] | None = None
        try:
            while reflector.streaming:
                reading = reading or asyncio.create_task(answer.read())
                await asyncio.wait(
                    {reading, probing} if probing else {reading},
                    timeout=reflector.due_ms(clock.monotonic_ms()) / 1000,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if reading.done():
                    data, reading = reading.result(), None
                    if not data:
                        reflector.ended(clock.monotonic_ms())
                        return
                    await self._deliver(reflector.piece(data, clock.monotonic_ms()))
                    reflector.reading_again(clock.monotonic_ms())
                if probing and probing.done():
                    probed, probing = probing, None
                    self._take_probe(probed)
                if reflector.let_time_pass(clock.monotonic_ms()):
                    probing = probing or asyncio.create_task(
                        self._client.get(self._path, reflector.probe_query(), _PAGE_BYTES_MAX)
                    )
        finally:
            await _cancelled(*(task for task in (reading, probing) if task))

    def _take_probe(self, probing: asyncio.Task[tuple[int, Mapping[str, str], bytes]]) -> None:
        try:
            code, headers, body = probing.result()
        except UnreachableError as error:
            self._reflector.probe_failed(str(error))
        else:
            self._reflector.probed(code, headers, body)

    async def _deliver(self, outputs: Iterable[Output]) -> None:
        """Hand over what was heard, one by one: the reflector goes on only behind what was taken."""
        for output in outputs:
            at_ms = self._clock.now_ms()
            if isinstance(output, Heard):
                place = f"watch:{self._resource}@{output.version}"
                frame = Frame(
                    at_ms=at_ms, resource=self._resource, type=output.type, object=output.object, place=place
                )
                await self._outbox.put(frame, output.size)
                if output.type == "LIST":
                    self.begun.set()
            else:
                # several may come behind one version, and each is a letter of its own
                place = f"watch:{self._resource}@{self._reflector.version}#{output.sha256[:16]}"
                parked = Parked(place=place, reason=output.reason, raw=output.shown, at_ms=at_ms)
                await self._outbox.put(parked, len(output.shown))


_NOT_SERVED: Final = (
    b'{"code":404,"reason":"NotFound","message":"resource.k8s.io is served in none of v1, v1beta2, v1beta1"}'
)


def _served(body: bytes) -> str:
    """Return the version of the API group to read, "" when none that is known is served."""
    try:
        group = decode_json(body)
    except ValueError:
        return ""
    listed = group.get("versions") if isinstance(group, dict) else None
    served = {
        entry.get("version")
        for entry in (listed if isinstance(listed, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("version"), str)
    }
    return next((version for version in _VERSIONS if version in served), "")


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they are gone."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
