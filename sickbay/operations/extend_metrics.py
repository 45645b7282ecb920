"""What the scheduler extender tells of its answers, filled by plain calls. Every method is cheap and never fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from sickbay.operations.metrics import Bounded, Level, Levels

#: Around the goal of 20 ms, up to what the scheduler waits at most by default.
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class _Age(Levels):
    def __init__(
        self, registry: CollectorRegistry, behind_ms: Callable[[], int | None], stale: Callable[[], bool]
    ) -> None:
        self._behind_ms, self._stale = behind_ms, stale
        registry.register(self)

    def levels(self) -> Iterator[Level]:
        behind_ms = self._behind_ms()
        seconds = math.inf if behind_ms is None else behind_ms / 1000
        yield Level(
            "sickbay_extend_behind_seconds",
            "How far what is known is behind the clock; infinite while that cannot be told.",
            "",
            {"": seconds},
        )
        yield Level(
            "sickbay_extend_stale",
            "1 while answers are given by respond.extender.when_stale.",
            "",
            {"": float(self._stale())},
        )


class ExtendMetrics:
    """Of `sickbay respond extend`. Outcomes, reasons and modes are closed lists."""

    def __init__(
        self, registry: CollectorRegistry, behind_ms: Callable[[], int | None], stale: Callable[[], bool]
    ) -> None:
        self._seconds = Histogram(
            "sickbay_extend_answer_seconds",
            "From the head of a request to its answer, by what came of it.",
            ["outcome"],
            registry=registry,
            buckets=BUCKETS_S,
        )
        self._nodes = Counter(
            "sickbay_extend_nodes",
            "Nodes that something stood against, by reason; in mode observe they passed.",
            ["reason", "mode"],
            registry=registry,
        )
        self._bounded = Bounded()
        _Age(registry, behind_ms, stale)

    def answered(self, outcome: str, seconds: float, nodes: Iterable[tuple[str, str, int]]) -> None:
        """Count a request, and ``(reason, mode, nodes)`` of what stood against them."""
        self._seconds.labels(self._bounded(outcome)).observe(seconds)
        for reason, mode, number in nodes:
            self._nodes.labels(self._bounded(reason), self._bounded(mode)).inc(number)
