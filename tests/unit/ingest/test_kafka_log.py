"""Keeping facts: what waits, what counts as kept, and what happens when a broker fails, against a producer that a test leads."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TopicAuthorizationFailedError,
)
from told_facts import pod, tick

from ingest import kafka_log
from ingest.kafka_delivery import Delivery, Outgoing
from ingest.kafka_log import KafkaFactLog
from ingest.packing import partition_of_fact
from ingest.remembering import PartitionMemory
from sickbay.cloudevents import INGEST_EPOCH, Message, single, unpack
from sickbay.codec import open_envelope, wrap_fact
from sickbay.deadletters import DeadLetter, read_letter
from sickbay.errors import ServiceError
from sickbay.settings import KafkaSettings
from sickbay.topics import RECORD_BYTES_MAX

SETTINGS = KafkaSettings(bootstrap="127.0.0.1:9", security="plaintext", prefix="t", partitions=2)


class Broker:
    """What producers write to; ``faults`` are met by the next records sent, one each, ``None`` for none."""

    def __init__(self):
        self.logs = {}
        self.sent = []
        self.faults = []
        self.starts = []
        self.producers = 0
        self.open = asyncio.Event()
        self.open.set()

    def make(self, _settings):
        self.producers += 1
        return Producer(self)

    async def drop(self, producer):
        producer.dropped = True

    def records(self, topic, partition=None):
        return [
            message
            for (name, number), log in self.logs.items()
            if name == topic and partition in {None, number}
            for message in log
        ]

    def facts(self, partition=None):
        return [
            open_envelope(event.envelope)
            for message in self.records("t.facts", partition)
            for event in unpack(message.value, message.headers)
        ]


class Producer:
    def __init__(self, broker):
        self.broker = broker
        self.dropped = False

    async def start(self):
        if self.broker.starts and (fault := self.broker.starts.pop(0)):
            raise fault

    async def send(self, topic, *, value, key, partition, headers):
        assert not self.dropped
        self.broker.sent.append((topic, partition, key))
        ack = asyncio.get_running_loop().create_future()
        fault = self.broker.faults.pop(0) if self.broker.faults else None
        if fault is not None:
            ack.set_exception(fault)
            return ack

        async def take():
            await self.broker.open.wait()
            if self.dropped:
                return
            log = self.broker.logs.setdefault((topic, partition), [])
            log.append(Message(key, value, headers))
            ack.set_result(SimpleNamespace(offset=len(log) - 1))

        ack.task = asyncio.ensure_future(take())
        return ack


def run(test, monkeypatch, *, limit_s=5.0, lead=True, **options):
    async def nothing(_settings):
        return {number: PartitionMemory() for number in range(SETTINGS.partitions)}

    async def no_facts(*_):
        return []

    monkeypatch.setattr(kafka_log, "recall_partitions", nothing)
    monkeypatch.setattr(kafka_log, "read_facts", no_facts)

    async def main():
        broker = Broker()
        delivery = Delivery(SETTINGS, limit_s=limit_s, make=broker.make, drop=broker.drop)
        log = KafkaFactLog(SETTINGS, delivery=delivery, **options)
        await log.start()
        await log.recall()
        if lead:
            log.lead(3)
        try:
            await asyncio.wait_for(test(log, broker), 20)
        finally:
            broker.open.set()
            await log.close()

    asyncio.run(main())


def test_facts_are_kept_in_order_under_the_epoch_of_the_leader(monkeypatch):
    async def test(log, broker):
        facts = [pod("a", rv) for rv in range(1, 101)]
        await log.publish(facts)
        await log.drain()
        assert broker.facts() == facts
        assert {dict(one.headers)[INGEST_EPOCH] for one in broker.records("t.facts")} == {b"3"}
        assert {log.facts_taken, log.facts_kept} == {100}
        assert (log.records, log.batches, log.waiting) == (1, 1, 0)

    run(test, monkeypatch)


def test_a_quiet_cluster_has_a_record_for_each_fact(monkeypatch):
    async def test(log, broker):
        await log.publish([pod("a", rv) for rv in range(1, 33)])
        await log.drain()
        assert (log.records, log.batches) == (32, 0)
        await log.publish([pod("a", rv) for rv in range(33, 66)])
        await log.drain()
        assert (log.records, log.batches) == (33, 1)

    run(test, monkeypatch)


def test_nothing_is_written_before_somebody_leads(monkeypatch):
    async def test(log, broker):
        with pytest.raises(ValueError, match="nobody leads"):
            await log.publish([pod()])
        assert not broker.sent

    run(test, monkeypatch, lead=False)


def test_an_epoch_that_is_not_above_all_before_is_refused(monkeypatch):
    async def test(log, broker):
        with pytest.raises(ValueError, match="not above 0"):
            log.lead(0)
        log.lead(1)
        await log.publish([pod()])
        await log.drain()
        with pytest.raises(ValueError, match="recalled before"):
            log.lead(2)
        await log.recall()
        log.lead(2)
        await log.publish([pod(rv=2)])
        await log.drain()
        assert [dict(one.headers)[INGEST_EPOCH] for one in broker.records("t.facts")] == [b"1", b"2"]

    run(test, monkeypatch, lead=False)


def test_a_leader_marks_its_beginning_in_every_partition_before_its_first_fact(monkeypatch):
    async def test(log, broker):
        await log.publish([tick(0, 1), tick(1, 1)])
        await log.drain()
        assert [(topic, number, key) for topic, number, key in broker.sent[:2]] == [
            ("t.known", 0, b'["epoch",3]'),
            ("t.known", 1, b'["epoch",3]'),
        ]

    run(test, monkeypatch)


def test_the_newest_fact_of_each_subject_is_known_after_it_is_acknowledged(monkeypatch):
    async def test(log, broker):
        await log.publish([pod("a", 1), pod("a", 3), pod("a", 2)])
        await log.drain()
        number = partition_of_fact(pod("a"), 2)
        await log.close()
        known = broker.records("t.known", number)[1:]
        assert [unpack(one.value, one.headers)[0].envelope.key for one in known] == ["a/pod:p1/pods:0:3"]
        order = [topic for topic, _, _ in broker.sent]
        assert order == ["t.known"] * 2 + ["t.facts"] * 3 + ["t.known"]

    run(test, monkeypatch)


def test_i1_facts_that_a_paused_leader_wrote_after_the_recall_end_this_leadership(monkeypatch):
    """It told Unhealthy; back at what was recalled, Healthy would be no news, and would never be told."""

    async def test(log, broker):
        number = partition_of_fact(pod("a", 7), SETTINGS.partitions)
        late = single(wrap_fact(pod("a", 7)), extra=[(INGEST_EPOCH, b"2")])
        broker.logs["t.facts", number] = [late]

        async def read(_settings, partition, begin, end):
            assert (partition, begin, end) == (number, 0, 1)
            return [SimpleNamespace(offset=0, value=late.value, headers=late.headers)]

        monkeypatch.setattr(kafka_log, "read_facts", read)
        await log.publish([pod("a", 8)])
        with pytest.raises(ServiceError, match="another ingester wrote 1 facts"):
            await log.drain()
        # what it took is kept all the same
        assert [fact.rv for fact in broker.facts(number)] == [7, 8]

    run(test, monkeypatch)


def test_closing_waits_for_the_known_records(monkeypatch):
    async def test(log, broker):
        await log.publish([tick(0, 1)])
        await log.drain()
        broker.open.clear()
        closing = asyncio.create_task(log.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        broker.open.set()
        await closing
        assert [one.key for one in broker.records("t.known", 0)][1:] == [b'["tick","partition/0","tick"]']

    run(test, monkeypatch)


def test_reading_stops_while_too_many_facts_wait(monkeypatch):
    async def test(log, broker):
        broker.open.clear()
        publishing = asyncio.create_task(log.publish([pod("a", rv) for rv in range(1, 51)]))
        await asyncio.sleep(0.05)
        assert not publishing.done()
        assert (log.waiting, log.facts_kept) == (10, 0)
        broker.open.set()
        await publishing
        await log.drain()
        assert [fact.rv for fact in broker.facts()] == list(range(1, 51))

    run(test, monkeypatch, queue_facts=10)


def test_the_age_of_the_oldest_waiting_fact_is_told(monkeypatch):
    now = [100.0]

    async def test(log, broker):
        assert log.oldest_waiting_s == 0
        broker.open.clear()
        await log.publish([pod("a", 1)])
        now[0] = 107.0
        assert log.oldest_waiting_s == 7
        await asyncio.sleep(0.05)
        assert log.oldest_waiting_s == 7
        broker.open.set()
        await log.drain()
        assert log.oldest_waiting_s == 0

    run(test, monkeypatch, clock=lambda: now[0])


def test_a_fact_that_no_record_holds_is_parked_and_the_others_are_kept(monkeypatch):
    async def test(log, broker):
        await log.publish(
            [pod("a", 1), pod("a\ud800", 2), pod("a", 3, uid="x" * RECORD_BYTES_MAX), pod("a", 4)]
        )
        await log.drain()
        assert [fact.rv for fact in broker.facts()] == [1, 4]
        letters = [read_letter(one.value) for one in broker.records("t.parked")]
        assert letters[0].reason.startswith("it cannot be encoded")
        assert letters[1].reason.startswith("it has ")
        assert letters[1].value_bytes > RECORD_BYTES_MAX
        assert (log.parked, log.facts_kept, log.waiting) == (2, 2, 0)

    run(test, monkeypatch)


def test_letters_of_the_ingester_are_parked(monkeypatch):
    async def test(log, broker):
        await log.park([DeadLetter(place="watch:pods", reason="bad")])
        assert read_letter(broker.records("t.parked")[0].value).place == "watch:pods"
        assert log.parked == 1

    run(test, monkeypatch, lead=False)


def outgoing(*numbers, partition=0):
    return [Outgoing("t.x", partition, Message(b"%d" % number, b"v", [])) for number in numbers]


def deliver(faults, records, *, starts=(), limit_s=5.0):
    """Return offsets, the log of the partition, and how many producers and resends it took."""

    async def main():
        broker = Broker()
        delivery = Delivery(SETTINGS, limit_s=limit_s, make=broker.make, drop=broker.drop)
        await delivery.start()
        broker.faults, broker.starts = list(faults), list(starts)
        offsets = await delivery.deliver(records)
        await delivery.close()
        keys = [message.key for message in broker.records("t.x", 0)]
        return offsets, keys, broker.producers, delivery.resends

    return asyncio.run(main())


def test_what_was_not_acknowledged_is_sent_again_with_what_stands_behind_it():
    offsets, keys, producers, resends = deliver([None, NotLeaderForPartitionError(), None], outgoing(1, 2, 3))
    assert keys[-2:] == [b"2", b"3"]
    assert [keys[offset] for offset in offsets] == [b"1", b"2", b"3"]
    assert offsets == sorted(offsets)
    assert producers == 2
    assert resends in {2, 3}


def test_other_partitions_are_not_sent_again():
    records = [*outgoing(1, 2), *outgoing(7, partition=1)]
    offsets, _, _, resends = deliver([OutOfOrderSequenceNumber(), None, None], records)
    assert len(offsets) == 3
    assert resends >= 2


def test_a_lost_numbering_is_healed_by_a_new_producer_once():
    offsets, keys, producers, _ = deliver([OutOfOrderSequenceNumber()], outgoing(1, 2))
    assert [keys[offset] for offset in offsets] == [b"1", b"2"]
    assert producers == 2


def test_a_numbering_that_stays_lost_fails():
    with pytest.raises(ServiceError, match="did not take"):
        deliver([OutOfOrderSequenceNumber()] * 4, outgoing(1, 2))


@pytest.mark.parametrize("fault", [ProducerFenced(), TopicAuthorizationFailedError("t.x")])
def test_a_refusal_fails_at_once(fault):
    with pytest.raises(ServiceError, match="start again once it serves"):
        deliver([fault], outgoing(1))


def test_a_broker_that_is_gone_for_a_while_is_waited_for():
    offsets, _, producers, _ = deliver(
        [NotLeaderForPartitionError()], outgoing(1), starts=[KafkaConnectionError(), None]
    )
    assert offsets == [0]
    assert producers == 3


def test_a_broker_that_is_gone_for_longer_than_the_limit_fails():
    with pytest.raises(ServiceError):
        deliver(
            [NotLeaderForPartitionError()], outgoing(1), starts=[KafkaConnectionError()] * 99, limit_s=0.3
        )


def test_publish_and_drain_tell_a_failure_and_nothing_counts_as_kept(monkeypatch):
    async def test(log, broker):
        await log.publish([tick(0, 1)])
        await log.drain()
        broker.faults = [None, ProducerFenced()]
        await log.publish([pod("a", 1), pod("a", 2)])
        with pytest.raises(ServiceError):
            await log.drain()
        with pytest.raises(ServiceError):
            await log.publish([pod("a", 3)])
        with pytest.raises(ServiceError):
            await log.park([DeadLetter(place="x", reason="y")])
        assert log.facts_kept == 1

    run(test, monkeypatch)


def test_a_delivery_that_takes_too_long_frees_whoever_waits(monkeypatch):
    async def test(log, broker):
        await log.publish([tick(0, 1)])
        await log.drain()
        broker.open.clear()
        with pytest.raises(ServiceError, match="did not take"):
            await log.publish([pod("a", rv) for rv in range(1, 30)])

    run(test, monkeypatch, limit_s=0.3, queue_facts=5)
