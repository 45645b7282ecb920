"""What Sickbay sees of a real control plane: its own watch in a thread, its own mirror and its own ledgers, as of any frame.

The thread only collects frames; facts and books follow when the test asks (``catch_up``), so nothing changes while it looks.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import custody_run
from control_plane import ControlPlane
from ledger_run import Run
from live_watch import Following, following

from ingest.diff import Mirror
from ingest.frames import RESOURCES, Frame
from sickbay.facts import Fact
from sickbay.policy import Policy, ReadingPolicy

#: How long a frame may take that is on its way.
WAIT_S = 20


class NotSeenError(AssertionError):
    """What the API server has, Sickbay's watch did not tell in time."""


class World:
    """A mirror, and a ledger and the custody of each node, over frames."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.mirror = Mirror(ReadingPolicy(), 1)
        self.runs: dict[str, Run] = {}
        self.custody: dict[str, custody_run.Run] = {}
        self.facts: list[Fact] = []
        self.at_ms = 0

    def apply(self, frame: Frame) -> None:
        self.at_ms = max(self.at_ms, frame.at_ms)
        for fact in self.mirror.apply(frame):
            self.facts.append(fact)
            if fact.node:
                self.run(fact.node).step(fact)
                self.custody_of(fact.node).step(fact)

    def custody_of(self, node: str) -> custody_run.Run:
        if node not in self.custody:
            self.custody[node] = custody_run.Run(self.policy, node=node)
        return self.custody[node]

    def run(self, node: str) -> Run:
        if node not in self.runs:
            self.runs[node] = Run(self.policy, node=node)
        return self.runs[node]

    def supposing(self, node: str, *objects: tuple[str, Mapping[str, Any]]) -> Run:
        """Return the ledger of a node as it would be if these objects were so; nothing of this world changes."""
        run = self.run(node).reopened()
        mirror = copy.deepcopy(self.mirror)
        for number, (resource, obj) in enumerate(objects):
            frame = Frame(
                at_ms=self.at_ms + number,
                resource=resource,
                type="MODIFIED",
                object=dict(obj),
                place="supposed",
            )
            for fact in mirror.apply(frame):
                if fact.node == node:
                    run.step(fact)
        return run


class Observer:
    """A watch of a control plane; use it as a context."""

    def __init__(self, plane: ControlPlane, policy: Policy) -> None:
        self.world = World(policy)
        self.frames: list[Frame] = []
        #: (resource, uid) to the newest version that was heard; of what was deleted, that of its deletion.
        self.versions: dict[tuple[str, str], int] = {}
        self.deleted: set[str] = set()
        self._plane = plane
        self._read = 0
        self._following: Following | None = None
        self._begun, self._ended = threading.Event(), threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._begun.wait(WAIT_S):
            raise NotSeenError("the watch did not begin") from self._failed
        self.until(
            lambda: {frame.resource for frame in self.frames if frame.type == "LIST"} >= set(RESOURCES)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)

    def _watch(self) -> None:
        async def run() -> None:
            async with following(self._plane, self._plane.folder, resources=RESOURCES) as follower:
                self._following = follower
                self._begun.set()
                await asyncio.to_thread(self._ended.wait)

        try:
            asyncio.run(run())
        except Exception as error:  # noqa: BLE001 - told by whoever waits
            self._failed = error

    def catch_up(self) -> None:
        """Take in what was heard so far."""
        assert self._following is not None
        heard = self._following.frames
        while self._read < len(heard):
            frame = heard[self._read]
            self._read += 1
            self.frames.append(frame)
            for obj in _objects(frame):
                metadata = obj.get("metadata", {})
                key = (frame.resource, metadata.get("uid", ""))
                self.versions[key] = int(metadata["resourceVersion"])
                if frame.type == "DELETED":
                    self.deleted.add(key[1])
            self.world.apply(frame)

    def until(self, holds: Callable[[], Any], what: str = "") -> Any:
        """Catch up until something holds, and return it. Raises NotSeenError."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end and self._failed is None:
            self.catch_up()
            if found := holds():
                return found
            time.sleep(0.002)
        raise NotSeenError(what or "what was waited for did not come") from self._failed

    def has_seen(self, resource: str, obj: Mapping[str, Any]) -> None:
        """Wait until this version of an object, or a newer one, was heard."""
        metadata = obj["metadata"]
        key, version = (resource, metadata["uid"]), int(metadata["resourceVersion"])
        self.until(
            lambda: self.versions.get(key, 0) >= version,
            f"{resource} {metadata['name']} at {version} was not heard",
        )


def _objects(frame: Frame) -> Iterator[Mapping[str, Any]]:
    if frame.object is None or frame.type in ("BOOKMARK", "ERROR", "TICK"):
        return
    if frame.type == "LIST":
        yield from frame.object.get("items", ())
    else:
        yield frame.object
