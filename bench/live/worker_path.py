"""The worker of ``sickbay work`` in this process, so that its own clock and a profiler can be read.

It is what the command builds: the same app, the same figures, the same logging; snapshots come as they come.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Mapping
from cProfile import Profile
from pathlib import Path

from sickbay.cli.working import _Figures
from sickbay.clock import SystemClock
from sickbay.operations.health import Progress
from sickbay.operations.logs import setup_logging
from sickbay.operations.metrics import new_registry
from sickbay.operations.stage_metrics import WorkMetrics
from sickbay.settings import KafkaSettings
from streams.app import LiveWorker

from .measured import FORWARDED, Course, Measured


class _Watching(_Figures):
    """The figures of the command, and the clock."""

    def __init__(self, course: Course, profile: Profile | None) -> None:
        super().__init__(WorkMetrics(new_registry("work"), SystemClock()), Progress("facts"))
        self._course = course
        self._profile = profile
        self.done = asyncio.Event()

    def answered(self, outcome: str, facts: Mapping[str, int], decisions: Mapping[str, int]) -> None:
        super().answered(outcome, facts, decisions)
        self._course.begin()
        if self._profile is not None:
            self._profile.enable()
        known = sum(count for kind, count in facts.items() if kind not in FORWARDED)
        self._course.took(known, (kind for kind, count in decisions.items() for _ in range(count)))
        if self._course.whole:
            self.done.set()


async def worker(settings: KafkaSettings, facts: int, profile_to: Path | None = None) -> Measured:
    """Fold the facts topic by the worker, until every fact of the prepared log is answered and the broker has the answers."""
    setup_logging("json", verbose=False)
    logging.getLogger().setLevel(logging.WARNING)
    course = Course(facts)
    profile = None if profile_to is None else Profile()
    figures = _Watching(course, profile)
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-work-") as folder:
        live = LiveWorker(settings, figures, data_dir=Path(folder))

        async def last_answer() -> None:
            await figures.done.wait()
            await live.app.producer.flush()
            if profile is not None and profile_to is not None:
                profile.disable()
                profile.dump_stats(profile_to)
            found.append(course.end())

        await live.run(last_answer)
    return found[0]
