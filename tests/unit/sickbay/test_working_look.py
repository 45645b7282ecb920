"""What `sickbay work` tells of itself: a consumer that is stuck raises nothing, and is found by what waits and does not move."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from sickbay.cli import working
from sickbay.operations.health import STUCK_S, Progress, Told
from sickbay.operations.live_clock import LiveClock
from sickbay.operations.metrics import new_registry
from sickbay.operations.stage_metrics import WorkMetrics


class Consumer:
    """Partition 3 ends at ``end`` and is folded up to ``position``; ``end`` is None while the broker does not answer."""

    is_ready = True

    def __init__(self, end, position):
        self.end, self.position, self.asked = end, position, 0

    async def spans(self):
        self.asked += 1
        return {} if self.end is None else {3: (self.position, self.end)}


class Look:
    """What liveness and readiness say of a consumer."""

    def __init__(self, consumer):
        self.consumer, self.now_s = consumer, 0.0
        self.progress = Progress("facts", monotonic=lambda: self.now_s)
        self.ready = Told("worker")

    async def for_s(self, seconds, step_s=10):
        """Let time pass, and the consumer be looked at every ``step_s`` seconds."""
        metrics = WorkMetrics(new_registry("work"), LiveClock())
        figures = working._Figures(metrics, self.progress)
        task = asyncio.create_task(working._look(self.consumer, figures, metrics, self.progress, self.ready))
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            asked = self.consumer.asked
            while self.consumer.asked < asked + 2:  # noqa: ASYNC110 - nothing but the look itself moves it
                await asyncio.sleep(0)
            self.now_s += step_s
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(working, "_LOOK_S", 0)


@pytest.mark.case("C55")
def test_c55_a_consumer_that_is_stuck_after_a_restart_of_the_broker_is_not_alive():
    look = Look(Consumer(end=20, position=10))
    asyncio.run(look.for_s(STUCK_S + 20))
    assert "nothing moved" in look.progress.problem()


@pytest.mark.case("C55")
def test_c55_a_consumer_with_nothing_to_do_or_without_a_broker_is_alive():
    idle = Look(Consumer(end=10, position=10))
    asyncio.run(idle.for_s(STUCK_S + 20))
    assert idle.progress.problem() is None
    down = Look(Consumer(end=20, position=10))
    asyncio.run(down.for_s(STUCK_S - 20))
    down.consumer.end = None
    asyncio.run(down.for_s(60))
    assert down.progress.problem() is None


def test_a_breaker_is_shown_with_what_waits_for_it_until_it_closes():
    registry = new_registry("work")
    figures = working._Figures(WorkMetrics(registry, LiveClock()), Progress("facts", monotonic=lambda: 0.0))

    def shown(scope):
        names = ("sickbay_work_breaker_open", "sickbay_work_breaker_waiting_devices")
        return tuple(registry.get_sample_value(name, {"scope": scope}) for name in names)

    for waiting, expected in (
        ({"cluster": 0, "driver:x": 9}, (1, 9)),
        ({"driver:x": 4}, (1, 4)),
        ({}, (0, 0)),
    ):
        figures.breaker(waiting)
        assert expected == shown("driver:x")
    assert (0, 0) == shown("cluster")
