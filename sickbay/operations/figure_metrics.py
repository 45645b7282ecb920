"""The read model's figures as metrics, counted beside the event loop and never while Prometheus waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from sickbay.clock import Clock
from sickbay.errors import SickbayError
from sickbay.operations.figures import Figures, ReadModelFigures
from sickbay.operations.measures import MeasureLevels
from sickbay.operations.metrics import Bounded, Level, Levels

#: Between two countings: Prometheus asks about as often.
REFRESH_S: Final = 30.0
_log: Final = logging.getLogger(__name__)


class FigureMetrics(Levels):
    """Shows the newest figures with their age. Nothing is shown before the first counting."""

    def __init__(self, registry: CollectorRegistry, figures: ReadModelFigures, clock: Clock) -> None:
        self._source, self._clock = figures, clock
        self._figures: Figures | None = None
        self._counted_ms = clock.now_ms()
        self._problem: str | None = "the read model was not counted yet"
        self._resources, self._scopes = Bounded(), Bounded()
        self._measures = MeasureLevels()
        registry.register(self)

    @property
    def name(self) -> str:
        """What is checked, as a check of readiness."""
        return "figures"

    def problem(self) -> str | None:
        """Why the newest counting failed, ``None`` when it did not."""
        return self._problem

    def refresh(self) -> None:
        """Count once; blocks. A failure keeps the figures of before, whose age goes on."""
        try:
            self._figures = self._source.read()
        except SickbayError as error:
            self._problem = str(error)
            _log.warning("the read model cannot be counted: %s", error)
        else:
            self._counted_ms, self._problem = self._clock.now_ms(), None

    async def keep(self, every_s: float = REFRESH_S) -> None:
        """Count again and again in a thread until cancelled; a counting that takes long delays the next one."""
        while True:
            await asyncio.to_thread(self.refresh)
            await asyncio.sleep(every_s)

    def levels(self) -> Iterator[Level]:
        """Yield the gauges."""
        found = self._figures
        yield Level(
            "sickbay_figures_age_seconds",
            "How long ago the read model was last counted.",
            "",
            {"": max(0, self._clock.now_ms() - self._counted_ms) / 1000},
        )
        yield Level(
            "sickbay_episodes_open",
            "Quarantine episodes that have not ended.",
            "phase",
            found.episodes_open if found else {},
        )
        yield Level(
            "sickbay_devices",
            "Devices by custody's phase; in_service counts those that never faulted too.",
            "phase",
            found.devices if found else {},
        )
        yield Level(
            "sickbay_nodes_on_hold",
            "Nodes to which no new claim may come.",
            "",
            {"": found.nodes_on_hold} if found else {},
        )
        yield Level(
            "sickbay_drifts_standing",
            "Differences between the two books that stand.",
            "cause",
            found.drifts_standing if found else {},
        )
        yield Level(
            "sickbay_watch_gaps",
            "Times in which nothing was seen of a resource type, ever.",
            "resource",
            _summed(self._resources, found.watch_gaps) if found else {},
        )
        yield Level(
            "sickbay_breaker_open",
            "1 for each scope whose breaker is open, as the read model says.",
            "scope",
            {self._scopes(scope): 1 for scope in sorted(found.breakers_open)} if found else {},
        )
        yield Level(
            "sickbay_view_newest_event_timestamp_seconds",
            "Newest event time in the store, as Unix time.",
            "",
            {"": found.newest_ms / 1000} if found and found.newest_ms is not None else {},
        )
        yield from self._measures(found.measures if found else None)


def _summed(bounded: Bounded, counts: Mapping[str, int]) -> dict[str, float]:
    summed: dict[str, float] = {}
    for raw, count in counts.items():
        shown = bounded(raw)
        summed[shown] = summed.get(shown, 0) + count
    return summed
