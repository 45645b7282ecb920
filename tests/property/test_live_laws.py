"""The laws of the live worker: a kill between any two effects, a rebalance, a batch or a repeat changes nothing in the end."""

from __future__ import annotations

import asyncio

import msgspec
from custody_histories import SHORT, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from live_feed import (
    answers,
    batch_of,
    begin,
    decisions,
    everybody,
    feed,
    number_of,
    snapshot_of,
    state_of,
    tick,
)

from sickbay.cloudevents import unpack, whole_header
from sickbay.codec import decode_envelope, open_envelope
from sickbay.facts import Tick
from streams.live import Live, read_record
from streams.testing import CrashedError, Driver

TOTAL = 2
NODES = ("node-g1", "node-g2", "node-g3")
END_MS = 1_000_000 + 600_000 + 86_400_000


@st.composite
def clusters(draw):
    """Facts of several nodes, merged by time, with ticks of every partition between them."""
    facts = [
        msgspec.structs.replace(fact, node=node)
        for node in NODES
        for fact in draw(histories(max_size=12))
        if getattr(fact, "partition", None) is None
    ]
    facts += [tick(at_ms, number) for at_ms in range(1_020_000, 1_320_000, 60_000) for number in range(TOTAL)]
    facts.sort(key=lambda fact: fact.observed_at_ms)
    return facts


def begun(facts, **options):
    driver = Driver(TOTAL, **options)
    begin(driver, SHORT)
    feed(driver, facts)
    everybody(driver, END_MS)
    return driver


def finish(driver):
    """Work to the end, whatever was forwarded on the way, and write a last snapshot."""

    async def run():
        while await driver.work():
            pass
        await driver.worker.snapshot()

    asyncio.run(run())
    return driver


def work_with_crashes(driver, crashes):
    """Let the worker be killed after the given numbers of effects, one after the other, and then finish."""

    async def run(effects):
        driver.crash_after = effects
        try:
            while await driver.work():
                pass
            await driver.worker.snapshot()
        except CrashedError:
            pass
        driver.start()

    for effects in crashes:
        asyncio.run(run(effects))
    return finish(driver)


def facts_written(driver, number):
    """What entered the facts topic by kind and id: the words of the breaker and the censuses may come twice."""
    seen = {}
    for record in driver.log[driver.topics.facts, number]:
        for opened in unpack(record.value, record.headers):
            seen.setdefault(opened.envelope.event_id, opened.data)
    return seen


def same(one, two):
    for number in range(TOTAL):
        assert list(map(str, decisions(one, number))) == list(map(str, decisions(two, number)))
        assert facts_written(one, number) == facts_written(two, number)
        nodes, _ = state_of(snapshot_of(one, number))
        again, _ = state_of(snapshot_of(two, number))
        assert nodes == again


@settings(max_examples=60, deadline=None)
@given(clusters(), st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(1, 9))
def test_a_worker_that_is_killed_between_any_two_effects_says_the_same_and_holds_the_same(
    facts, crashes, every
):
    calm = finish(begun(facts))
    driver = work_with_crashes(begun(facts, snapshot_records=every), crashes)
    same(calm, driver)


@settings(max_examples=30, deadline=None)
@given(clusters(), st.integers(1, 5))
def test_every_record_is_acknowledged_by_a_snapshot_that_holds_it_and_by_none_that_does_not(facts, every):
    driver = begun(facts, snapshot_records=every)

    async def run():
        while await driver.work(limit=1):
            for number in range(TOTAL):
                found = snapshot_of(driver, number)
                assert driver.committed[number] <= (0 if found is None else found.position)

    asyncio.run(run())


@settings(max_examples=40, deadline=None)
@given(clusters(), st.integers(2, 6))
def test_facts_of_one_node_in_a_batch_lead_to_what_they_lead_to_one_by_one(facts, size):
    calm = finish(begun(facts))
    driver = Driver(TOTAL)
    begin(driver, SHORT)
    waiting = []

    def flush():
        for message in batch_of(waiting) if waiting else ():
            driver.write(number_of(waiting[0], TOTAL), message)
        waiting.clear()

    for fact in facts:
        if waiting and (isinstance(fact, Tick) or fact.node != waiting[0].node or len(waiting) == size):
            flush()
        waiting.append(fact)
        if isinstance(fact, Tick):
            flush()
    flush()
    everybody(driver, END_MS)
    same(calm, finish(driver))


@settings(max_examples=40, deadline=None)
@given(clusters(), st.data())
def test_a_fact_that_comes_again_with_a_later_time_changes_nothing(facts, data):
    calm = finish(begun(facts))
    repeated = list(facts)
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(repeated) - 1))
        fact = repeated[index]
        if isinstance(fact, Tick):
            continue
        again = min(len(repeated), index + data.draw(st.integers(1, 6)))
        repeated.insert(again, msgspec.structs.replace(fact, observed_at_ms=fact.observed_at_ms + 7_000))
    driver = finish(begun(repeated))
    for number in range(TOTAL):
        assert [str(d) for d in decisions(calm, number)] == [str(d) for d in decisions(driver, number)]
        assert state_of(snapshot_of(calm, number))[0] == state_of(snapshot_of(driver, number))[0]


def followed(driver, number):
    """The state that the recorded answers lead to, deciding nothing."""
    live = Live(number, TOTAL)
    live.source = driver.source
    said = answers(driver, number)
    for offset, record in enumerate(driver.log[driver.topics.facts, number]):
        outcome, datas = said.get(offset, ("taken", []))
        if outcome != "taken":
            live.skip(offset)
            continue
        envelopes = [decode_envelope(data) for data in datas]
        read = read_record(
            unpack(record.value, record.headers),
            whole_header(record.headers, "sickbay-ingest-epoch"),
            number,
            TOTAL,
        )
        live.follow(offset, read, [(e.causation_id, open_envelope(e)) for e in envelopes])
    return live


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_following_the_recorded_answers_gives_the_state_that_decided_byte_for_byte(facts):
    driver = finish(begun(facts))
    for number in range(TOTAL):
        assert state_of(followed(driver, number)) == state_of(snapshot_of(driver, number))


@settings(max_examples=30, deadline=None)
@given(clusters(), st.integers(0, 40), st.integers(1, 12))
def test_a_worker_that_lost_its_partition_and_did_not_know_spoils_nothing(facts, before, more):
    calm = finish(begun(facts))
    driver = begun(facts, snapshot_records=4)

    async def run():
        await driver.work(limit=before)
        zombie, read = driver.worker, dict(driver._read)
        driver.start()
        await driver.work(limit=more)
        successor, theirs = driver.worker, driver._read
        # the paused worker wakes, and goes on with what it has in hand
        driver.worker, driver._read = zombie, read
        await driver.work(limit=more)
        driver.worker, driver._read = successor, theirs

    asyncio.run(run())
    driver.start()
    same(calm, finish(driver))
