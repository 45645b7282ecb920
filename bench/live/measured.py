"""What one process that folds a log came to, and how it is counted. It must not know what folds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final

import msgspec
from clock import Clock

from sickbay.cloudevents import Opened

#: What a prepared log does not hold and a fold adds to it: censuses and words of the breaker.
FORWARDED: Final = frozenset({"census_taken", "breaker_state_changed"})


def on_one_core() -> None:
    """Keep this process and all its threads on one core, so that every row has equally much to work with."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class Measured(msgspec.Struct, kw_only=True):
    """One run."""

    #: Facts of the prepared log that were folded, and whether those were all.
    facts: int
    whole: bool
    nanoseconds: int
    processor_nanoseconds: int
    peak_bytes: int
    #: Kind to how many decisions of it: rows that fold the same records must agree.
    decisions: dict[str, int]


class Course:
    """From the first record to the last answer: a clock, and what was counted meanwhile."""

    def __init__(self, facts: int) -> None:
        self._expected = facts
        self._facts = 0
        self._decisions: Counter[str] = Counter()
        self._clock = Clock()
        self._running = ExitStack()
        self._began = False

    def begin(self) -> None:
        """Start the clock, if it does not run yet."""
        if not self._began:
            self._began = True
            self._running.enter_context(self._clock)

    def took(self, facts: int, decisions: Iterable[str]) -> None:
        """So many facts of the prepared log were answered, by decisions of these kinds."""
        self._facts += facts
        self._decisions.update(decisions)

    @property
    def whole(self) -> bool:
        """Whether the whole log is answered."""
        return self._facts >= self._expected

    def end(self) -> Measured:
        """Stop the clock and return what came of it."""
        self._running.close()
        result = self._clock.result(self._facts)
        return Measured(
            facts=self._facts,
            whole=self.whole,
            nanoseconds=result.nanoseconds,
            processor_nanoseconds=result.processor_nanoseconds,
            peak_bytes=result.peak_bytes,
            decisions={
                kind: count for kind, count in sorted(self._decisions.items()) if kind not in FORWARDED
            },
        )


def facts_among(opened: Iterable[Opened]) -> int:
    """Return how many events of a record stand in the prepared log."""
    return sum(item.envelope.kind not in FORWARDED for item in opened)
