"""A watch of a fake API server that feeds a mirror, for tests: what was heard, what it meant, and waiting for either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fake_apiserver import FakeApiServer

from ingest.diff import Mirror
from ingest.frames import Frame, Parked
from ingest.steps import Timing
from ingest.watching import SystemWatchClock, Watch
from sickbay.cluster.client import ApiClient
from sickbay.facts import Fact
from sickbay.policy import ReadingPolicy

#: Times that suit loopback. Probes and resyncs come only where a test wants them.
FAST: dict[str, Any] = {
    "idle_ms": 60_000, "probe_ms": 10**9, "resync_ms": 10**9, "backoff_ms": 2, "backoff_max_ms": 20,
    "refused_ms": 20, "unavailable_ms": 20, "settled_ms": 5,
}  # fmt: skip


class Following:
    """What a watch has told so far."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.mirror = Mirror(ReadingPolicy(), 1)
        self.frames: list[Frame] = []
        self.parked: list[Parked] = []
        self.facts: list[Fact] = []
        self._changed = asyncio.Event()

    async def run(self) -> None:
        async for item in self.watch.frames():
            if isinstance(item, Frame):
                self.frames.append(item)
                self.facts += self.mirror.apply(item)
            else:
                self.parked.append(item)
            self._changed.set()

    async def until(self, holds: Callable[[], Any], timeout_s: float = 20) -> Any:
        """Wait until something holds, and return it."""
        async with asyncio.timeout(timeout_s):
            while not (found := holds()):
                self._changed.clear()
                # a state may change without a frame
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.01)
        return found

    def of(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def heard(self, *types: str) -> list[Frame]:
        return [frame for frame in self.frames if frame.type in types]

    def state(self, resource: str = "pods") -> str:
        return self.watch.status()[resource].state


@asynccontextmanager
async def following(
    server: FakeApiServer,
    folder: Path,
    *,
    resources: tuple[str, ...] = ("pods",),
    token_file: Path | None = None,
    watch_list: bool = False,
    versions: dict[str, int] | None = None,
    **timing: Any,
) -> AsyncIterator[Following]:
    """Watch ``resources`` while the block runs; an error of the watch is raised at its end."""
    client = await ApiClient.connect(server.kubeconfig(folder / "kubeconfig", token_file=token_file))
    watch = Watch(
        client,
        SystemWatchClock(),
        resources=resources,
        timing=Timing(**(FAST | timing)),
        watch_list=watch_list,
        versions=versions,
    )
    follower = Following(watch)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await client.close()
        if client.host.startswith("https"):
            # aiohttp does not wait for the end of TLS, and asyncio complains of what is not over when the loop closes
            await asyncio.sleep(0.25)
