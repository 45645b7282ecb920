"""Ticks: only while the watch is honest, after everything that was seen, on the grid."""

import asyncio

import pytest
from virtual_time import LoopTimes, run_virtually

from ingest.frames import Frame, Parked
from ingest.ticker import SETTLE_MS, Beat, Heard, grid_between, hears_leases, is_honest, live_items, ticks

MINUTE = 60_000


def heard(resource="pods", heard_ms=0, *, required=True, idle_ms=3 * MINUTE):
    return Heard(resource, required, heard_ms, idle_ms)


@pytest.mark.parametrize(
    ("watches", "honest"),
    [
        ([heard("pods", 0), heard("nodes", 0)], True),
        ([heard("pods", -2 * MINUTE), heard("nodes", 0)], True),
        ([heard("pods", -3 * MINUTE - 1), heard("nodes", 0)], False),
        ([heard("pods", None), heard("nodes", 0)], False),
        ([heard("pods", 0), heard("resourceslices", None, required=False)], True),
        ([heard("pods", None, required=False)], False),
        ([], False),
    ],
    ids=["all", "within the limit", "one silent", "one never heard", "one not served", "none served", "none"],
)
def test_a_watch_is_honest_while_everything_needed_is_heard(watches, honest):
    assert is_honest(watches, 0) is honest


def test_every_partition_gets_its_tick():
    assert [(tick.partition, tick.observed_at_ms) for tick in ticks(7_000, 3)] == [
        (0, 7_000),
        (1, 7_000),
        (2, 7_000),
    ]


@pytest.mark.parametrize(
    ("after_ms", "before_ms", "times"),
    [(0, 10, []), (0, 31, [10, 20, 30]), (10, 20, []), (9, 20, [10]), (10, 21, [20]), (30, 10, [])],
)
def test_the_grid_lies_between_two_times(after_ms, before_ms, times):
    assert list(grid_between(after_ms, before_ms, 10)) == times


def test_a_long_silence_gets_few_ticks_and_one_at_its_end():
    hour, week = 3_600_000, 7 * 86_400_000
    times = list(grid_between(0, week, 10_000))
    assert times[:360] == list(range(10_000, hour + 1, 10_000))
    assert times[-1] == week - 10_000
    assert times == sorted(set(times))
    assert len(times) < 1_500
    assert all(at % 10_000 == 0 for at in times)


class Live:
    """Frames that come at given times, in seconds after the start, and watches that are as honest as the test says."""

    def __init__(self, interval_ms=5_000):
        self.times = LoopTimes()
        self.interval_ms = interval_ms
        self.honest = True

    def watches(self):
        return [heard("pods", self.times.monotonic_ms() if self.honest else None)]

    async def frames(self, at_s, late_ms=0):
        start_s = asyncio.get_running_loop().time()
        for at in at_s:
            await asyncio.sleep(max(0, start_s + at - asyncio.get_running_loop().time()))
            yield Frame(
                at_ms=self.times.now_ms() - late_ms,
                resource="pods",
                type="BOOKMARK",
                object={},
                place="watch",
            )

    async def collect(self, frames, until_s):
        start_ms = self.times.now_ms()
        out = []

        async def take():
            items = live_items(frames, times=self.times, watches=self.watches, interval_ms=self.interval_ms)
            async for item in items:
                out.append((item, self.times.now_ms() - start_ms))  # noqa: PERF401 - a timeout ends it

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(take(), until_s)
        return start_ms, out


async def _forever():
    await asyncio.sleep(10**9)
    yield


def test_ticks_come_on_the_grid_a_moment_after_their_time():
    async def scene():
        live = Live()
        start_ms, out = await live.collect(_forever(), 20.3)
        beats = [(item.at_ms, start_ms + at) for item, at in out if isinstance(item, Beat)]
        assert [at for at, _ in beats] == [(start_ms // 5_000 + n) * 5_000 for n in (1, 2, 3, 4)]
        assert all(told - at == SETTLE_MS for at, told in beats)

    run_virtually(scene())


def test_the_mirror_hears_of_the_time_before_the_partitions_do():
    async def scene():
        _, out = await Live().collect(_forever(), 6)
        (frame, _), (beat, _) = out
        assert (frame.type, frame.at_ms) == ("TICK", beat.at_ms)

    run_virtually(scene())


def test_nothing_is_ticked_while_the_watch_is_cut_off_nor_at_once_when_it_is_back():
    """What it missed comes first."""

    async def scene():
        live = Live()
        live.honest = False
        loop = asyncio.get_running_loop()
        loop.call_later(12, setattr, live, "honest", True)
        start_ms, out = await live.collect(_forever(), 26)
        beats = [item.at_ms for item, _ in out if isinstance(item, Beat)]
        assert beats == [(start_ms // 5_000 + n) * 5_000 for n in (4, 5)]

    run_virtually(scene())


def test_the_mirror_hears_of_no_time_in_which_leases_are_silent():
    """A tick would stand for a sign of their watch, and while that hangs every Lease would lapse (I8)."""

    async def scene():
        live = Live()
        start_ms = live.times.monotonic_ms()

        def watches():
            return [heard("pods", live.times.monotonic_ms()), heard("leases", start_ms)]

        live.watches = watches
        _, out = await live.collect(_forever(), 41)
        at_s = [at // 5_000 * 5 for item, at in out if isinstance(item, Frame)]
        assert at_s == [5, 10]
        assert sum(isinstance(item, Beat) for item, _ in out) == 8

    run_virtually(scene())


@pytest.mark.parametrize(
    "leases", [[], [heard("leases", None, required=False)]], ids=["no watch", "not served"]
)
def test_leases_that_nobody_can_hear_keep_no_time_from_the_mirror(leases):
    assert hears_leases([heard("pods", 0), *leases], 0)


def test_a_tick_comes_after_every_frame_of_its_time_however_late_that_is():
    async def scene():
        live = Live()
        # each frame was stamped up to a second before it comes
        _, out = await live.collect(live.frames([n * 0.05 for n in range(1, 400)], late_ms=1_000), 19)
        ticked_ms = 0
        for item, _ in out:
            if isinstance(item, Beat):
                ticked_ms = item.at_ms
            elif item.type != "TICK":
                assert item.at_ms > ticked_ms
        assert sum(isinstance(item, Beat) for item, _ in out) >= 3

    run_virtually(scene())


def test_many_ticks_that_were_missed_are_one():
    async def scene():
        live = Live()

        async def frames():
            yield Frame(at_ms=live.times.now_ms(), resource="pods", type="BOOKMARK", object={}, place="watch")
            await asyncio.sleep(100)
            yield Frame(at_ms=live.times.now_ms(), resource="pods", type="BOOKMARK", object={}, place="watch")

        start_ms = live.times.now_ms()
        items = live_items(frames(), times=live.times, watches=live.watches)
        beats = []
        async for item in items:
            if isinstance(item, Beat):
                beats.append(item.at_ms - start_ms)
                if len(beats) == 1:
                    await asyncio.sleep(60)  # the log took no facts for a minute
        assert beats[1] - beats[0] == 60_000

    run_virtually(scene())


def test_what_was_parked_goes_through():
    async def scene():
        note = Parked(place="watch:pods", reason="broken", raw="")

        async def frames():
            yield note

        items = live_items(frames(), times=LoopTimes(), watches=list)
        assert [item async for item in items] == [note]

    run_virtually(scene())
