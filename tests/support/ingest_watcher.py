"""A mirror that follows a small cluster through lists and watches, and all that it told."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ingest.diff import Mirror
from ingest.frames import RESOURCES, Frame, FrameType
from sickbay.facts import Fact
from sickbay.policy import ReadingPolicy
from tests.support.ingest_worlds import Step, World


class Watcher:
    """A mirror that follows a world, and all that it told."""

    def __init__(self, partitions: int = 2) -> None:
        self.mirror = Mirror(ReadingPolicy(), partitions)
        self.told: list[Fact] = []
        self.at_ms = 0
        self._held: dict[str, list[tuple[FrameType, dict[str, Any]]]] = {}

    def frame(
        self, kind: FrameType, resource: str = "", obj: dict[str, Any] | None = None, *, after_ms: int = 2_000
    ) -> list[Fact]:
        """Apply one frame, two seconds after the last one unless told otherwise."""
        self.at_ms += after_ms
        facts = self.mirror.apply(
            Frame(
                at_ms=self.at_ms,
                resource=resource,
                type=kind,
                object=copy.deepcopy(obj),
                place=f"world:{self.at_ms}",
            )
        )
        self.told += facts
        return facts

    def read(self, world: World, order: list[str]) -> list[Fact]:
        """LIST everything, in this order of resources, and tick: who watches Leases ticks."""
        facts = [fact for resource in order for fact in self.frame("LIST", resource, world.listing(resource))]
        return facts + self.frame("TICK")

    def lose(self) -> None:
        """Hear from every watch that its version is too old, and of what was under way no more."""
        self._held = {}
        for resource in RESOURCES:
            self.frame("ERROR", resource, {"code": 410, "reason": "Expired"}, after_ms=0)

    def follow(self, world: World, history: list[Step]) -> None:
        """Let the world change, and watch it; a watch that is held carries its events later."""
        for step in history:
            what, which, _ = step
            if what == "tick":
                self.frame("TICK")
            elif what == "hold":
                self._held.setdefault(RESOURCES[which], [])
            elif what == "release":
                self.release(RESOURCES[which])
            elif what == "bookmark":
                if not self._held.get(RESOURCES[which]):
                    self.frame("BOOKMARK", RESOURCES[which], {"metadata": {"resourceVersion": str(world.rv)}})
            else:
                if what in {"deallocate", "delete_claim"}:
                    # what was said of a claim is heard before the claim is taken back
                    self.release("pods")
                if what == "allocate":
                    # a claim of devices that may be on two nodes is seen after both, or it would wait with half its nodes
                    self.release("resourceslices")
                world.write(step)
                self.carry(world)

    def carry(self, world: World) -> None:
        """Apply the events of the world that no watch has carried yet."""
        events, world.events = world.events, []
        for resource, kind, obj in events:
            if resource in self._held:
                self._held[resource].append((kind, obj))
            else:
                self.frame(kind, resource, obj)

    def release(self, resource: str) -> None:
        """Let a watch carry what it held."""
        for kind, obj in self._held.pop(resource, ()):
            self.frame(kind, resource, obj)

    def catch_up(self) -> None:
        """Let every watch carry what it held."""
        for resource in RESOURCES:
            self.release(resource)


def key_of(fact: Fact) -> tuple[str, ...]:
    """Return the node and what the fact is about there."""
    broadcast = (fact.KIND, str(getattr(fact, "partition", ""))) if fact.resource == "clock" else ()
    return (fact.node, fact.resource, fact.subject, getattr(fact, "pod_uid", ""), *broadcast)


def newest(facts: list[Fact]) -> Iterator[Fact]:
    """Yield the newest fact of each subject on each node, of equal versions the last."""
    found: dict[tuple[str, ...], Fact] = {}
    for fact in facts:
        key = key_of(fact)
        before = found.get(key)
        if before is None or (fact.epoch, fact.rv) >= (before.epoch, before.rv):
            found[key] = fact
    yield from found.values()
