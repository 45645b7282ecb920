"""Facts in a real Kafka: order, what a recall finds, and nothing lost when the publisher or the broker dies."""

import asyncio
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from kafka_records import make_topics, read_all
from kafka_server import KafkaServer
from publishing import numbered
from told_facts import naive_fold, noted, pod, tick, word

from ingest.kafka_delivery import Delivery
from ingest.kafka_log import KafkaFactLog
from ingest.kafka_recall import recall_partitions
from ingest.packing import partition_of_fact
from sickbay.cloudevents import BATCH, INGEST_EPOCH, unpack
from sickbay.codec import open_envelope
from sickbay.errors import ServiceError
from sickbay.kafka import client_arguments
from sickbay.settings import KafkaSettings

PUBLISHING = Path(__file__).parents[1] / "support" / "publishing.py"


async def recalled(settings):
    log = KafkaFactLog(settings)
    await log.start()
    try:
        memory = await log.recall()
        return {noted(fact).key: fact for fact in memory.facts}, memory.ingest_epoch, memory.last_ms
    finally:
        await log.close()


async def folded(settings):
    """Return what a fold of all facts leaves."""
    out = {}
    for records in (await read_all(settings, settings.topics.facts, settings.partitions)).values():
        out |= naive_fold((record.value, record.headers) for record in records)
    return {key: open_envelope(unpack(one.data, None)[0].envelope) for key, one in out.items()}


async def publish(settings, facts, *, epoch=None):
    log = KafkaFactLog(settings)
    await log.start()
    memory = await log.recall()
    log.lead(memory.ingest_epoch + 1 if epoch is None else epoch)
    await log.publish(facts)
    await log.drain()
    await log.close()
    return log


def test_facts_keep_their_order_and_share_records_when_many_wait(kafka_settings):
    facts = [fact for number in range(1, 900) for fact in numbered(number, 4)]

    async def main():
        await make_topics(kafka_settings)
        log = await publish(kafka_settings, facts)
        found = await read_all(kafka_settings, kafka_settings.topics.facts, 4)
        for number, records in found.items():
            events = [
                open_envelope(event.envelope)
                for record in records
                for event in unpack(record.value, record.headers)
            ]
            expected = [fact for fact in facts if partition_of_fact(fact, 4) == number]
            for node in {fact.node for fact in expected}:
                assert [fact for fact in events if fact.node == node] == [
                    fact for fact in expected if fact.node == node
                ]
            assert sorted(map(repr, events)) == sorted(map(repr, expected))
            assert all(dict(record.headers)[INGEST_EPOCH] == b"1" for record in records)
        kinds = [dict(record.headers)["content-type"] for records in found.values() for record in records]
        assert kinds.count(BATCH) == log.batches > 0
        assert log.facts_kept == len(facts)
        return await recalled(kafka_settings), await folded(kafka_settings)

    (memory, epoch, last_ms), expected = asyncio.run(main())
    assert memory == expected
    assert (epoch, last_ms) == (1, max(fact.observed_at_ms for fact in facts))


def test_an_empty_log_remembers_nothing(kafka_settings):
    async def main():
        await make_topics(kafka_settings)
        return await recalled(kafka_settings)

    assert asyncio.run(main()) == ({}, 0, None)


def test_a_missing_topic_is_told_with_what_to_do(kafka_settings):
    with pytest.raises(ServiceError, match="sickbay topics apply"):
        asyncio.run(recalled(kafka_settings))


def test_other_partitions_than_agreed_are_told(kafka_settings):
    async def main():
        await make_topics(kafka_settings)
        await recalled(msgspec.structs.replace(kafka_settings, partitions=5))

    with pytest.raises(ServiceError, match="has 4 partitions and must have 5"):
        asyncio.run(main())


def test_a_paused_leader_that_wakes_changes_nothing_that_counts(kafka_settings):
    async def main():
        await make_topics(kafka_settings)
        old, new = KafkaFactLog(kafka_settings), KafkaFactLog(kafka_settings)
        await old.start()
        await old.recall()
        old.lead(1)
        await old.publish([pod("a", 1), pod("b", 1)])
        await old.drain()
        await new.start()
        await new.recall()
        # between recall and the first record of the next leader, what the old one writes counts
        await old.publish([pod("a", 2)])
        await old.drain()
        new.lead(2)
        await new.publish([pod("a", 3), pod("b", 3)])
        with pytest.raises(ServiceError, match="another ingester wrote 1 facts"):
            await new.drain()
        await new.close()
        new = KafkaFactLog(kafka_settings)
        await new.start()
        await new.recall()
        new.lead(3)
        await new.publish([pod("a", 3), pod("b", 3)])
        await new.drain()
        await old.publish([pod("a", 9), word("a", 9)])
        await old.drain()
        await old.close()
        await new.publish([pod("b", 4)])
        await new.drain()
        await new.close()
        return await recalled(kafka_settings), await folded(kafka_settings)

    (memory, epoch, _), expected = asyncio.run(main())
    assert memory == expected == {noted(fact).key: fact for fact in (pod("a", 3), pod("b", 4))}
    assert epoch == 3


@pytest.mark.case("C51")
def test_c51_a_recall_after_compaction_is_a_fold_of_all_facts(kafka_prefix):
    eager = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "0"}

    async def main(server):
        settings = own(server, kafka_prefix)
        await make_topics(settings, known=eager)
        for part in range(4):
            facts = [pod(f"node-{number}", part + 1, at_ms=part) for number in range(60)]
            await publish(settings, facts)
            await asyncio.sleep(0.2)
        async with asyncio.timeout(60):
            while True:
                found = await read_all(settings, settings.topics.known, 4)
                if all(len(records) < records[-1].offset for records in found.values()):
                    break
                await asyncio.sleep(0.5)
        memory, _, _ = await recalled(settings)
        assert memory == await folded(settings)
        assert all(one.trusted for one in (await recall_partitions(settings)).values())

    with KafkaServer(settings={"log.cleaner.backoff.ms": "200"}) as server:
        asyncio.run(main(server))


async def delete(settings, topic, number, before_offset):
    admin = AIOKafkaAdminClient(**client_arguments(settings, "tests"))
    await admin.start()
    await admin.delete_records({TopicPartition(topic, number): RecordsToDelete(before_offset=before_offset)})
    await admin.close()


@pytest.mark.case("C51")
def test_c51_a_recall_ends_where_nothing_is_left_below_the_end(kafka_settings):
    async def main():
        # only a topic with this policy lets records be deleted
        await make_topics(kafka_settings, known={"cleanup.policy": "compact,delete"})
        await publish(kafka_settings, [pod("a", rv) for rv in range(1, 20)])
        for number, records in (await read_all(kafka_settings, kafka_settings.topics.known, 4)).items():
            await delete(kafka_settings, kafka_settings.topics.known, number, records[-1].offset + 1)
        return (await recalled(kafka_settings))[0], await folded(kafka_settings)

    memory, expected = asyncio.run(main())
    assert memory == expected == {noted(pod()).key: pod("a", 19)}


def test_facts_that_were_deleted_and_are_needed_are_a_failure(kafka_settings):
    number = partition_of_fact(pod("a"), 4)

    async def main():
        await make_topics(kafka_settings)
        await publish(kafka_settings, [pod("a", rv) for rv in range(1, 20)])
        await delete(kafka_settings, kafka_settings.topics.facts, number, 19)
        await recalled(kafka_settings)

    with pytest.raises(ServiceError, match="facts were deleted"):
        asyncio.run(main())


class Publishing:
    """The publishing process, and the last number that it said is kept."""

    def __init__(self, settings, first):
        self.process = subprocess.Popen(
            [sys.executable, str(PUBLISHING), settings.bootstrap, settings.prefix, "4", str(first)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(PUBLISHING.parent)},
        )
        self.kept = first - 1

    def wait_for_lines(self, count):
        for _ in range(count):
            self.kept = int(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.kept = int(line)
        self.process.wait()
        self.process.stdout.close()


def kill_and_recall(settings, kills, seed):
    drawn = random.Random(seed)  # noqa: S311 - a seed makes the kills, no secret
    asyncio.run(make_topics(settings))
    first = 1
    for _ in range(kills):
        one = Publishing(settings, first)
        try:
            # some die in the beginning of their leadership, while what the last one left is written
            one.wait_for_lines(drawn.choice((0, 1, 1, 5)))
            time.sleep(drawn.uniform(0, 0.7 if one.kept < first else 0.1))
        finally:
            one.kill()
        memory, _, _ = asyncio.run(recalled(settings))
        assert memory == asyncio.run(folded(settings))
        kept = {}
        for number in range(1, one.kept + 1):
            kept |= {noted(fact).key: fact for fact in numbered(number, 4)}
        for key, fact in kept.items():
            found = memory[key]
            assert (found.rv, found.observed_at_ms) >= (fact.rv, fact.observed_at_ms)
        # numbers of facts that were sent and not acknowledged are not used again
        first = 1 + max([one.kept, *(fact.observed_at_ms // 1_000 for fact in memory.values())])


def test_nothing_that_was_acknowledged_is_missing_after_a_kill(kafka_settings):
    kill_and_recall(kafka_settings, 4, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_that_was_acknowledged_is_missing_after_many_kills(kafka_settings):
    kill_and_recall(kafka_settings, 40, 2)


def own(server, prefix):
    return KafkaSettings(
        bootstrap=server.bootstrap, security="plaintext", prefix=prefix, partitions=4, replication=1
    )


@pytest.mark.parametrize("outage_s", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_broker_that_hangs_and_restarts_loses_nothing_and_the_queue_stays_bounded(kafka_prefix, outage_s):
    async def main(server):
        settings = own(server, kafka_prefix)
        await make_topics(settings)
        log = KafkaFactLog(settings, queue_facts=500)
        await log.start()
        await log.recall()
        log.lead(1)
        facts = [fact for number in range(1, 1_500) for fact in numbered(number, 4)]
        await log.publish(facts[:100])
        await log.drain()
        server.pause()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        publishing = asyncio.create_task(log.publish(facts[100:]))
        await asyncio.sleep(outage_s)
        assert not publishing.done()
        assert log.waiting == 500
        assert log.oldest_waiting_s > outage_s - 1
        server.resume()
        await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await publishing
        await log.drain()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
        assert log.facts_kept == len(facts)
        await log.close()
        memory, _, _ = await recalled(settings)
        assert memory == await folded(settings)
        assert memory == {noted(fact).key: fact for fact in facts}

    with KafkaServer() as server:
        asyncio.run(main(server))


def test_a_broker_that_stays_away_ends_the_process_in_time(kafka_prefix):
    async def main(server):
        settings = own(server, kafka_prefix)
        await make_topics(settings)
        log = KafkaFactLog(settings, delivery=Delivery(settings, limit_s=10))
        await log.start()
        await log.recall()
        log.lead(1)
        await log.publish([tick(0, 1)])
        await log.drain()
        await asyncio.to_thread(server.kill)
        await log.publish([tick(0, 2)])
        with pytest.raises(ServiceError, match="did not take"):
            await log.drain()
        await log.close()
        assert log.facts_kept == 1

    with KafkaServer() as server:
        asyncio.run(main(server))
