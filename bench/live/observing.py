"""The ingester's part with many objects, in a process of its own: ``python -m live.observing cold|restart FOLDER``.

``cold`` lists everything into an empty mirror, publishes what follows if Kafka is named in the environment, and lists everything
again, unchanged. ``restart`` begins with what Kafka remembers and lists the same. Pages are pruned and joined as the reflector
does it. Prints what came of it as JSON.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import msgspec
from processes import peak_bytes

from ingest.diff import Mirror
from ingest.frames import Frame
from ingest.kafka_log import KafkaFactLog
from ingest.listing import Pages
from ingest.pruning import prune
from sickbay.facts import Fact, PolicyChanged
from sickbay.policy import Policy
from sickbay.settings import kafka_settings
from sickbay.topics import PARTITIONS_DEFAULT

from .listing import RESOURCES, pages

START_MS: Final = 1_782_892_800_000
_RESYNC_MS: Final = 600_000
#: Told for each partition at every LIST, whatever it holds, and after a restart.
_ABOUT_THE_WATCH: Final = frozenset({"resync_completed", "watch_gap_found"})
_PUBLISHED_AT_ONCE: Final = 1_000


class Listed(msgspec.Struct, kw_only=True):
    """One time that everything was listed."""

    #: Facts on objects; those on the watch itself are not counted.
    facts: int
    nanoseconds: int
    #: High-water mark of this process when it was done.
    peak_bytes: int


class Observed(msgspec.Struct, kw_only=True):
    """What a process came to."""

    listed: list[Listed]
    #: Time to publish the facts of the first list and have them acknowledged, or to recall them; 0 without Kafka.
    kafka_nanoseconds: int = 0
    #: Facts that were published, or recalled.
    kafka_facts: int = 0


def list_all(mirror: Mirror, folder: Path, at_ms: int) -> tuple[Listed, list[Fact]]:
    """Read every page, apply every list, and return what came of it with the facts."""
    begun = perf_counter_ns()
    facts: list[Fact] = []
    for resource in RESOURCES:
        joined = Pages(partial(prune, resource))
        for page in pages(folder, resource):
            problem = joined.add(page)
            assert not problem, problem
        frame = Frame(at_ms=at_ms, resource=resource, type="LIST", object=joined.joined(), place=resource)
        facts += mirror.apply(frame)
    passed = perf_counter_ns() - begun
    assert not mirror.drain_parked(), "a generated list has nothing unreadable"
    about_objects = sum(fact.KIND not in _ABOUT_THE_WATCH for fact in facts)
    return Listed(facts=about_objects, nanoseconds=passed, peak_bytes=peak_bytes()), facts


def cold(folder: Path) -> Observed:
    """List everything into an empty mirror, publish it where there is Kafka, and list it again."""
    mirror = Mirror(Policy().reading, _partitions())
    first, facts = list_all(mirror, folder, START_MS)
    result = Observed(listed=[first])
    if "SICKBAY_KAFKA_BOOTSTRAP" in os.environ:
        policy = [PolicyChanged.to(Policy(), START_MS, number) for number in range(_partitions())]
        result.kafka_facts = len(policy) + len(facts)
        result.kafka_nanoseconds = asyncio.run(_publish([*policy, *facts]))
    facts.clear()
    result.listed.append(list_all(mirror, folder, START_MS + _RESYNC_MS)[0])
    return result


def restart(folder: Path) -> Observed:
    """List everything into a mirror that knows what Kafka remembers."""
    begun = perf_counter_ns()
    mirror = Mirror(Policy().reading, _partitions())
    known = asyncio.run(_recall(mirror))
    passed = perf_counter_ns() - begun
    listed, _ = list_all(mirror, folder, START_MS + 2 * _RESYNC_MS)
    return Observed(listed=[listed], kafka_nanoseconds=passed, kafka_facts=known)


async def _publish(facts: Sequence[Fact]) -> int:
    log = KafkaFactLog(kafka_settings(os.environ))
    await log.start()
    try:
        await log.recall()
        log.lead(1)
        begun = perf_counter_ns()
        for at in range(0, len(facts), _PUBLISHED_AT_ONCE):
            await log.publish(facts[at : at + _PUBLISHED_AT_ONCE])
        await log.drain()
        return perf_counter_ns() - begun
    finally:
        await log.close()


async def _recall(mirror: Mirror) -> int:
    log = KafkaFactLog(kafka_settings(os.environ))
    await log.start()
    try:
        memory = await log.recall()
        counted = _Counted(memory.facts)
        mirror.recall(counted, memory.last_ms)
        return counted.count
    finally:
        await log.close()


class _Counted:
    """Facts, and how many of them went by."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._facts = facts
        self.count = 0

    def __iter__(self) -> Iterator[Fact]:
        for fact in self._facts:
            self.count += 1
            yield fact


def _partitions() -> int:
    return int(os.environ.get("SICKBAY_KAFKA_PARTITIONS", PARTITIONS_DEFAULT))


def main() -> None:
    """Measure what the command line names."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    measured = cold(folder) if what == "cold" else restart(folder)
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
