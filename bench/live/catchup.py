"""Catching up after an outage: a worker that finds many facts in the log, packed as a publisher packs what waited.

The worker is started, has folded every node's beginning, and is stopped; the facts of the outage are written, and it is started
again. Time runs from that start to the last answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
from report import Goal

from sickbay.clock import SystemClock

from .history import log_of
from .logs import ends, fill
from .processes_of import Answers, wait_ready, worker_process
from .services import Services

#: What an hour at 500 facts a second leaves, in two minutes.
_NEEDED_PER_S = 15_000
_SIZE = 100
_LIMIT_S = 900.0


class CatchUp(msgspec.Struct, frozen=True, kw_only=True):
    """What it came to."""

    facts: int
    records: int
    #: From the start of the process to the last answer, and from the first answer to the last.
    milliseconds: int
    answering_milliseconds: int

    @property
    def per_second(self) -> int:
        """Facts over the whole time."""
        return self.facts * 1000 // max(1, self.milliseconds)

    @property
    def answering_per_second(self) -> int:
        """Facts over the time in which it answered."""
        return self.facts * 1000 // max(1, self.answering_milliseconds)


def catch_up(
    services: Services, folder: Path, *, nodes: int, facts: int, partitions: int, say: Callable[[str], None]
) -> tuple[CatchUp, Goal]:
    """Measure it once."""
    clock = SystemClock()
    settings = services.installation()
    before = log_of(nodes, nodes, partitions, 1)
    asyncio.run(fill(settings, before.records))
    waiting = log_of(nodes, facts, partitions, _SIZE, begin=nodes)

    async def answered(worker: object) -> Answers:
        async with Answers(settings) as answers:
            worker.start()  # type: ignore[attr-defined]
            await answers.until(await ends(settings, settings.topics.facts), _LIMIT_S, worker)
        return answers

    worker = worker_process(settings, folder)
    try:
        asyncio.run(answered(worker))
        wait_ready(worker)
        worker.stop()
        asyncio.run(fill(settings, waiting.records))
        begun_ms = clock.now_ms()
        answers = asyncio.run(answered(worker))
    finally:
        worker.kill()
    result = CatchUp(
        facts=waiting.facts,
        records=len(waiting.records),
        milliseconds=answers.last_ms - begun_ms,
        answering_milliseconds=answers.last_ms - answers.first_ms,
    )
    say(f"  {result.facts} facts in {result.milliseconds / 1000:.1f} s")
    return result, Goal(
        goal=f"catching up, one worker, records of {_SIZE} facts, >= {_NEEDED_PER_S:,} facts/s (an hour at 500/s in 2 minutes)",
        reached=f"{result.facts:,} facts in {result.milliseconds / 1000:.1f} s, {result.per_second:,}/s;"
        f" {result.answering_per_second:,}/s from its first answer on",
        met=result.per_second >= _NEEDED_PER_S,
    )
