"""The Faust app: with what its clients are made."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from aiokafka.errors import KafkaConnectionError
from faust.types import TP

from sickbay.settings import KafkaSettings
from streams.app import STALLED_S, LiveWorker, Stalls
from streams.faust_parts import bounded_consumer, sure_assignor
from streams.testing import Counts


def test_its_producer_writes_nothing_twice_and_nothing_behind_a_batch_that_was_refused(monkeypatch):
    made = {}
    monkeypatch.setattr("aiokafka.AIOKafkaProducer", lambda **arguments: made.update(arguments))

    async def run():
        settings = KafkaSettings(bootstrap="localhost:9092", security="plaintext")
        worker = LiveWorker(settings, Counts())
        worker.app.producer._new_producer()

    asyncio.run(run())
    assert made["enable_idempotence"]
    assert made["acks"] == -1


@pytest.mark.parametrize(
    ("topic", "limit", "commits"), [("facts", 0, None), ("facts", 2, 2), ("facts", 9, 4), ("other", 0, 4)]
)
def test_no_offset_is_committed_above_a_snapshot_and_none_of_a_partition_that_was_let_go_of(
    topic, limit, commits
):
    kind, tp = bounded_consumer("facts", "state", lambda _: limit), TP(topic, 0)
    consumer = kind.__new__(kind)
    consumer._acked, consumer._acked_index = {tp: [1, 2, 3]}, defaultdict(set)
    consumer._gap, consumer._committed_offset = defaultdict(dict), {tp: None}
    assert consumer._new_offset(tp) == commits


@pytest.mark.parametrize(("topic", "read"), [("facts", None), ("state", None), ("decisions", 7)])
def test_of_facts_and_of_state_no_record_is_dropped_as_one_that_was_read(topic, read):
    """A partition that is read again from before them, in a rebalance, would be left with a hole."""

    async def run():
        settings = KafkaSettings(bootstrap="localhost:9092", security="plaintext")
        offsets = LiveWorker(settings, Counts()).app.consumer._read_offset
        tp = TP(getattr(settings.topics, topic), 0)
        offsets[tp] = 7
        return offsets[tp]

    assert asyncio.run(run()) == read


def test_a_recovery_that_stands_still_is_read_again_from_where_it_is(monkeypatch):
    """Faust drops what it fetched before the flow goes on, and then waits for it until the limit of the recovery."""
    monkeypatch.setattr("streams.app.STALLED_S", 0.05)
    sought = []

    async def run():
        settings = KafkaSettings(bootstrap="localhost:9092", security="plaintext")
        worker = LiveWorker(settings, Counts())
        stuck, begun, done = (TP(settings.topics.state, partition) for partition in range(3))
        recovery = worker.app.tables.recovery
        recovery.active_tps.update((stuck, begun, done))
        recovery.active_highwaters.update({stuck: 4, begun: 9, done: 7})
        recovery.active_offsets.update({stuck: -1, begun: 5, done: 7})

        enough = asyncio.Event()

        async def seek_wait(offsets):
            sought.append(dict(offsets))
            if len(sought) > 7:
                enough.set()
            if len(sought) > 5:
                raise KafkaConnectionError

        worker.app.consumer.seek_wait = seek_wait
        task = asyncio.create_task(worker._unstuck())
        async with asyncio.timeout(10):
            await enough.wait()
        recovery.completed.set()
        await asyncio.sleep(0.2)
        told = len(sought)
        await asyncio.sleep(0.2)
        task.cancel()
        assert len(sought) == told
        return stuck, begun

    stuck, begun = asyncio.run(run())
    assert {tuple(offsets.items()) for offsets in sought} == {((stuck, 0),), ((begun, 5),)}


def spans(answer):
    """Return what a worker says before and after the group's offset is known, of a broker that answers so."""

    async def run():
        settings = KafkaSettings(bootstrap="localhost:9092", security="plaintext")
        worker = LiveWorker(settings, Counts())
        facts, consumer = settings.topics.facts, worker.app.consumer
        consumer.assignment = lambda: {TP(facts, 0), TP(facts, 1), TP("other", 2)}
        consumer.highwaters = lambda *tps: answer(facts, tps)
        before = await worker.spans()
        consumer._committed_offset[TP(facts, 0)] = 7
        return before, await worker.spans()

    return asyncio.run(run())


def test_a_partition_of_which_nothing_came_yet_waits_for_nothing_behind_the_offset_of_the_group():
    async def answer(facts, tps):
        return {tp: 7 if tp.partition == 0 else None for tp in tps if tp.topic == facts}

    assert spans(answer) == ({0: (0, 7)}, {0: (7, 7)})


@pytest.mark.case("C55")
def test_c55_the_broker_is_asked_for_the_end_and_a_consumer_that_is_stuck_is_not(monkeypatch):
    asked = []

    async def answer(facts, tps):
        asked.append(tps)
        return {TP(facts, 0): 20}

    assert spans(answer) == ({0: (0, 20)}, {0: (7, 20)})
    assert len(asked) == 2

    async def refused(_facts, _tps):
        raise KafkaConnectionError

    assert spans(refused) == ({}, {})

    async def late(facts, _tps):
        asked.append("late")
        await asyncio.sleep(0.02)
        return {TP(facts, 0): 20}

    # what is late is waited for, and not asked again
    monkeypatch.setattr("streams.app.ENDS_TIMEOUT_S", 0.015)
    assert spans(late) == ({}, {0: (7, 20)})
    assert asked.count("late") == 1


def test_a_partition_that_has_more_and_stands_still_is_read_again_once_in_a_while():
    stalls = Stalls()
    assert stalls.found({0: (5, 9), 1: (3, 3), 2: (1, 2)}, 0.0) == {}
    assert stalls.found({0: (5, 9), 1: (3, 3), 2: (2, 4)}, STALLED_S - 1) == {}
    assert stalls.found({0: (5, 9), 1: (3, 4), 2: (2, 4)}, STALLED_S) == {0: 5}
    assert stalls.found({0: (5, 9), 1: (3, 4), 2: (4, 4)}, STALLED_S + 1) == {}
    assert stalls.found({0: (5, 9), 2: (4, 5)}, 2 * STALLED_S) == {0: 5}


def test_topics_that_the_client_lost_sight_of_are_divided_all_the_same():
    """A broker that restarts is without topics for a moment, and nobody divides again afterwards."""

    class Blind:
        def partitions_for_topic(self, _topic):
            return None

    assignor = sure_assignor(("facts", "state"), 4)
    groups = assignor._get_copartitioned_groups(
        {"facts", "state", "other"}, Blind(), {"one": ["facts", "state", "other"]}
    )
    assert {number: [set(topics) for topics in found] for number, found in groups.items()} == {
        4: [{"facts", "state"}]
    }
