"""Two electors and one Lease: who leads when, whatever happens to lines, clocks, processes and the Lease itself."""

import asyncio
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leases import LeaseLine, LeaseServer
from virtual_time import LoopTimes, run_virtually

from sickbay.cluster.leading import Elector
from sickbay.cluster.lease import LEASE_MS, RENEW_DEADLINE_MS, made
from sickbay.errors import ServiceError


class Candidate:
    """A process that leads whenever it can, and is started again when it lost."""

    def __init__(self, server, name, skew_ms=0):
        self.line = LeaseLine(server)
        self.name = name
        self.skew_ms = skew_ms
        self.starts = 0
        self.epochs = []
        self.elector = None
        #: The loop's time until which it was stopped; what it believes then is excused until it runs again.
        self.excused = False

    async def live(self):
        while True:
            self.starts += 1
            self.elector = Elector(
                self.line, f"{self.name}-{self.starts}", times=LoopTimes(self.skew_ms), sleep=self.line.sleep
            )
            with suppress(ServiceError):
                self.epochs.append(await self.elector.acquire())
                await self.elector.keep()

    @property
    def believes(self):
        return self.elector is not None and self.elector.leads


def test_one_leads_and_the_other_waits():
    async def scene():
        server = LeaseServer()
        one, two = Candidate(server, "one"), Candidate(server, "two")
        tasks = [asyncio.create_task(c.live()) for c in (one, two)]
        await asyncio.sleep(120)
        assert one.believes != two.believes
        assert one.epochs + two.epochs == [1]
        await _end(tasks)

    run_virtually(scene())


@pytest.mark.parametrize("skew_ms", [-3_600_000, 3_600_000])
def test_clocks_that_differ_by_an_hour_change_nothing(skew_ms):
    async def scene():
        server = LeaseServer()
        one, two = Candidate(server, "one"), Candidate(server, "two", skew_ms)
        tasks = [asyncio.create_task(one.live())]
        await asyncio.sleep(30)
        tasks.append(asyncio.create_task(two.live()))
        await asyncio.sleep(600)
        assert one.believes
        assert not two.believes
        one.line.down = True
        await asyncio.sleep(60)
        assert two.believes
        assert (one.epochs, two.epochs) == ([1], [2])
        await _end(tasks)

    run_virtually(scene())


def test_a_leader_that_is_cut_off_stops_before_another_begins():
    async def scene():
        server = LeaseServer()
        one, two = Candidate(server, "one"), Candidate(server, "two")
        tasks = [asyncio.create_task(one.live())]
        await asyncio.sleep(30)
        tasks.append(asyncio.create_task(two.live()))
        await asyncio.sleep(30)
        loop = asyncio.get_running_loop()
        one.line.down = True
        cut_s = loop.time()
        while one.believes:  # noqa: ASYNC110 - time itself ends it
            await asyncio.sleep(0.1)
        stopped_s = loop.time()
        while not two.believes:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)
        assert stopped_s - cut_s <= RENEW_DEADLINE_MS / 1000 + 0.2
        assert 2 < loop.time() - stopped_s <= LEASE_MS / 1000
        await _end(tasks)

    run_virtually(scene())


def test_a_renewal_is_as_old_as_its_request_and_not_as_its_answer():
    async def scene():
        server = LeaseServer()
        server.keep(made("sickbay-ingest", "", "t1"))
        line = LeaseLine(server, latency_s=0.01)
        elector = Elector(line, "one", times=LoopTimes())
        await elector.acquire()
        line.latency_s = 1.9
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        await elector.raise_to(5)
        assert loop.time() - sent_s == pytest.approx(3.8)
        await asyncio.sleep(sent_s + RENEW_DEADLINE_MS / 1000 - loop.time() + 0.01)
        assert not elector.leads

    run_virtually(scene())


def test_one_that_was_paused_asks_before_it_writes_and_finds_that_it_does_not_lead():
    async def scene():
        server = LeaseServer()
        one, two = Candidate(server, "one"), Candidate(server, "two")
        tasks = [asyncio.create_task(one.live())]
        await asyncio.sleep(30)
        tasks.append(asyncio.create_task(two.live()))
        await asyncio.sleep(10)
        one.line.paused = True
        await asyncio.sleep(40)
        asleep = one.elector
        assert two.believes
        with pytest.raises(ServiceError, match="sickbay-ingest was not renewed"):
            asleep.require()
        one.line.paused = False
        await asyncio.sleep(60)
        assert two.believes
        assert not one.believes
        assert server.lease["spec"]["holderIdentity"] == "two-1"
        await _end(tasks)

    run_virtually(scene())


def test_a_deleted_lease_does_not_hand_out_an_old_number():
    async def scene():
        server = LeaseServer()
        one = Candidate(server, "one")
        task = asyncio.create_task(one.live())
        await asyncio.sleep(30)
        server.lease["spec"]["leaseTransitions"] = 41
        await _end([task])
        server.delete()
        two = Elector(LeaseLine(server), "two", times=LoopTimes())
        assert await two.acquire(at_least=42) == 42
        assert server.lease["spec"]["leaseTransitions"] == 42

    run_virtually(scene())


def test_a_number_that_the_log_has_passed_is_raised_in_the_lease():
    async def scene():
        server = LeaseServer()
        elector = Elector(LeaseLine(server), "one", times=LoopTimes())
        assert await elector.acquire() == 1
        await elector.raise_to(17)
        assert elector.epoch == server.lease["spec"]["leaseTransitions"] == 17
        await elector.raise_to(3)
        assert elector.epoch == 17

    run_virtually(scene())


def test_a_lease_that_is_deleted_under_its_holder_ends_it_before_another_begins():
    async def scene():
        server = LeaseServer()
        one, two = Candidate(server, "one"), Candidate(server, "two")
        tasks = [asyncio.create_task(one.live())]
        await asyncio.sleep(30)
        tasks.append(asyncio.create_task(two.live()))
        await asyncio.sleep(30)
        server.delete()
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert not (one.believes and two.believes)
        assert one.believes or two.believes
        await _end(tasks)

    run_virtually(scene())


def test_an_answer_that_was_lost_is_no_loss_of_the_lease():
    async def scene():
        server = LeaseServer()
        one = Candidate(server, "one")
        task = asyncio.create_task(one.live())
        await asyncio.sleep(30.9)
        one.line.deaf = True
        await asyncio.sleep(2.5)  # a renewal is kept, and its answer is not heard
        one.line.deaf = False
        await asyncio.sleep(60)
        assert one.believes
        assert one.epochs == [1]
        await _end([task])

    run_virtually(scene())


def test_what_others_write_into_the_lease_is_kept_and_does_not_end_the_leadership():
    async def scene():
        server = LeaseServer()
        one = Candidate(server, "one")
        task = asyncio.create_task(one.live())
        await asyncio.sleep(30)
        server.lease["metadata"]["labels"] = {"team": "ml"}
        server.keep(server.lease)
        await asyncio.sleep(30)
        assert one.believes
        assert one.epochs == [1]
        assert server.lease["metadata"]["labels"] == {"team": "ml"}
        await _end([task])

    run_virtually(scene())


def test_a_leader_that_stops_gives_the_lease_to_the_next_at_once():
    async def scene():
        server = LeaseServer()
        one = Elector(LeaseLine(server), "one", times=LoopTimes())
        await one.acquire()
        two = Candidate(server, "two")
        task = asyncio.create_task(two.live())
        await asyncio.sleep(1)
        await one.release()
        assert not one.leads
        await asyncio.sleep(3)
        assert two.believes
        assert two.epochs == [2]
        await _end([task])

    run_virtually(scene())


def test_times_are_written_as_the_api_server_reads_them():
    async def scene():
        server = LeaseServer()
        await Elector(LeaseLine(server), "one", times=LoopTimes()).acquire()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", server.lease["spec"]["renewTime"])

    run_virtually(scene())


_TROUBLES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["paused", "down", "deaf", "delete", "touch"]),
        st.integers(1, 400),
        st.integers(1, 300),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(troubles=_TROUBLES, skew_ms=st.integers(-3_600_000, 3_600_000), latency_ms=st.integers(0, 3_000))
def test_never_two_believe_that_they_lead_unless_one_of_them_is_stopped(troubles, skew_ms, latency_ms):
    async def scene():
        server = LeaseServer()
        pair = [Candidate(server, "one"), Candidate(server, "two", skew_ms)]
        for candidate in pair:
            candidate.line.latency_s = latency_ms / 1000 / 2
        tasks = [asyncio.create_task(c.live()) for c in pair]

        async def make_trouble():
            for who, what, wait_ds, length_ds in troubles:
                await asyncio.sleep(wait_ds / 10)
                if what == "delete":
                    server.delete()
                elif what == "touch":
                    if server.lease is not None:
                        server.keep(server.lease)
                else:
                    setattr(pair[who].line, what, True)
                    await asyncio.sleep(length_ds / 10)
                    setattr(pair[who].line, what, False)

        trouble = asyncio.create_task(make_trouble())
        quiet = 0
        while quiet < 1_000:
            await asyncio.sleep(0.1)
            assert sum(c.believes for c in pair if not c.line.paused) <= 1
            quiet = quiet + 1 if trouble.done() else 0
        await trouble
        assert sum(c.believes for c in pair) == 1 or latency_ms > 1_500
        epochs = sorted(pair[0].epochs + pair[1].epochs)
        if not any(what == "delete" for _, what, *_ in troubles):
            assert epochs == sorted(set(epochs))
        await _end(tasks)

    run_virtually(scene())


async def _end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
