"""How long a worker takes to begin, on a short log and on one of ten times the length, with equally many records to fold again.

Both installations have the same nodes. A worker folds each log, writing its snapshots as it goes, and is stopped, which writes a
last one. Then, in turns: so many records are written, and a worker is started; time runs to the answer of the last of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
from report import Goal, decimal, milli

from sickbay.clock import SystemClock
from sickbay.settings import KafkaSettings

from .history import log_of
from .logs import ends, fill
from .processes_of import Answers, worker_process
from .services import Services

LENGTHS: Final = (1, 10)
_TAIL_SIZE: Final = 1
_LIMIT_S: Final = 600.0
#: What ten times the log may cost, in thousandths.
_MOST_MILLI: Final = 1_200
#: Time for the broker to compact what is closed, as it does by itself; it is there in any cluster.
_COMPACTING_S: Final = 5.0
_SEGMENT_MS: Final = 2_000


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """One length of log."""

    #: Facts before the first start, and those after the last snapshot.
    facts: int
    tail: int
    #: Records of the state topic between its first and its last offset, and those that compaction left, at the first start.
    state_offsets: int
    state_records: int
    #: From the start of the process to the answer of the last record; each start.
    milliseconds: list[int]


class _Installed:
    """One installation with its worker."""

    def __init__(self, settings: KafkaSettings, folder: Path, nodes: int, words: int) -> None:
        self.settings = settings
        self.worker = worker_process(settings, folder)
        self._nodes, self._words = nodes, words
        self._written = 0
        self.facts = 0
        self.state = (0, 0)
        self.times: list[int] = []

    def fold_all(self) -> None:
        """Write the log, let a worker fold it, and stop that."""
        log = log_of(self._nodes, self._words, self.settings.partitions, 100)
        self._written = self._words
        self.facts = log.facts
        asyncio.run(fill(self.settings, log.records))
        asyncio.run(self._start())
        self.worker.stop()

    def look(self) -> None:
        """Count what the state topic holds."""
        from live_processes import read_topic

        topic = self.settings.topics.state
        left = sum(map(len, read_topic(self.settings, topic).values()))
        self.state = (sum(asyncio.run(ends(self.settings, topic)).values()), left)

    def begin(self, tail: int) -> None:
        """Write so many words, and measure a start."""
        log = log_of(self._nodes, tail, self.settings.partitions, _TAIL_SIZE, begin=self._written)
        self._written += tail
        asyncio.run(fill(self.settings, log.records))
        self.times.append(asyncio.run(self._start()))
        self.worker.stop()

    async def _start(self) -> int:
        targets = await ends(self.settings, self.settings.topics.facts)
        async with Answers(self.settings) as answers:
            begun_ms = SystemClock().now_ms()
            self.worker.start()
            await answers.until(targets, _LIMIT_S, self.worker)
            return answers.last_ms - begun_ms


def recovery(
    services: Services,
    folder: Path,
    *,
    nodes: int,
    words: int,
    tail: int,
    rounds: int,
    say: Callable[[str], None],
) -> tuple[list[Recovery], Goal]:
    """Measure both lengths in turns."""
    installed = []
    try:
        for times in LENGTHS:
            place = folder / f"{times}"
            place.mkdir()
            one = _Installed(services.installation(state_segment_ms=_SEGMENT_MS), place, nodes, times * words)
            installed.append(one)
            one.fold_all()
            say(f"  a log of {one.facts} facts is folded")
        time.sleep(_COMPACTING_S)
        for one in installed:
            one.look()
        for number in range(rounds):
            for one in installed:
                one.begin(tail)
                say(f"  start {number + 1} on {one.facts} facts: {one.times[-1] / 1000:.2f} s")
    finally:
        for one in installed:
            one.worker.kill()
    results = [
        Recovery(
            facts=one.facts,
            tail=tail,
            state_offsets=one.state[0],
            state_records=one.state[1],
            milliseconds=one.times,
        )
        for one in installed
    ]
    short, long = results
    ratio = int(median(milli(b, a) for a, b in zip(short.milliseconds, long.milliseconds, strict=True)))
    return results, Goal(
        goal="start on ten times the log, equally many records after the snapshot, <= 1.2x the time",
        reached=f"{decimal(ratio)}x: {_shown(short)} on {short.facts:,} facts, {_shown(long)} on {long.facts:,}",
        met=ratio <= _MOST_MILLI,
    )


def _shown(result: Recovery) -> str:
    middle: Any = median(result.milliseconds)
    return f"{middle / 1000:.2f} s"
