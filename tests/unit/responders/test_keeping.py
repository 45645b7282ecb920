"""The loop of a responder: it acts on what stands, again after what fails, and never before it has read the past."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from virtual_time import run_virtually

from responders.keeping import ACT_S, RESYNC_S, keep
from sickbay.errors import ServiceError
from sickbay.operations.health import Told
from sickbay.operations.running import Stop


class Bench:
    """A loop over an act that a test scripts; ``looks`` are the times at which it acted, in seconds."""

    def __init__(self, *script):
        self.script, self.looks, self.ready = list(script), [], Told("act")

    async def act(self):
        self.looks.append(round(asyncio.get_running_loop().time() - self.begun))
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        if step == "hangs":
            await asyncio.sleep(1e6)
        return step

    async def run(self, for_s, *, caught_up=True, changes=()):
        self.begun = asyncio.get_running_loop().time()
        self.decisions = SimpleNamespace(changed=asyncio.Event(), caught_up=asyncio.Event())
        if caught_up:
            self.decisions.caught_up.set()
        stop = Stop()
        task = asyncio.ensure_future(keep(self.decisions, self.act, stop, self.ready))
        for at_s in changes:
            asyncio.get_running_loop().call_later(at_s, self.decisions.changed.set)
        await asyncio.sleep(for_s)
        stop.request()
        await task
        return self


def test_it_looks_now_and_then_and_at_once_when_something_changed():
    bench = run_virtually(Bench().run(100, changes=(5,)))
    assert [0, 5, 5 + RESYNC_S, 5 + 2 * RESYNC_S, 5 + 3 * RESYNC_S] == bench.looks
    assert bench.ready.problem() is None


def test_it_looks_again_when_it_is_due():
    assert [0, 7, 8] == run_virtually(Bench(7.0, 1.0, 500.0).run(20)).looks


def test_nothing_is_done_before_the_past_is_read():
    assert [] == run_virtually(Bench().run(100, caught_up=False)).looks


def test_what_fails_or_hangs_is_told_and_tried_again_after_pauses_that_grow():
    bench = Bench(*(ServiceError("no API server") for _ in range(8)), "hangs")
    run_virtually(bench.run(150))
    assert [0, 0, 2, 4, 8, 16, 32, 62, 92] == bench.looks
    assert "it was not done after 120 s" == bench.ready.problem()
    hung = run_virtually(Bench("hangs").run(ACT_S + 1))
    assert (2, None) == (len(hung.looks), hung.ready.problem())


def test_any_other_error_ends_the_process():
    with pytest.raises(KeyError):
        run_virtually(Bench(KeyError("a fault of ours")).run(1))
