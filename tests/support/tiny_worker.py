"""A worker small enough to be right by inspection: it folds one partition from its first record and answers in Kafka's terms.

It keeps no snapshot, so one that crashed answers everything again. What the log must be follows from the same fold, without Kafka.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from facts_of import policy_changed
from log_builder import health, published

from projections.records import LogRecord, ParkedItem
from sickbay.cloudevents import FACTS_OFFSET, INGEST_EPOCH, OUTCOME, PART, Message, batches, single, unpack
from sickbay.codec import encode, open_envelope, wrap_decision, wrap_fact
from sickbay.deadletters import letter_message, of_record, read_letter
from sickbay.envelope import partition_of
from sickbay.errors import CodecError
from sickbay.facts import Tick
from sickbay.policy import Policy
from streams.partition import Partition

#: Records below this ingest epoch were written by an ingester that had been replaced.
EPOCH = 2
GARBAGE = Message(b"node-1", b"\xff garbage", [])
DECISIONS_PER_PART = 2


def devices_of(node):
    return [f"dra:gpu.example.com/{node}/gpu-{number}" for number in range(2)]


def facts_records(partitions, *, nodes=8, rounds=10):
    """Return partition -> records of its facts topic: batches and single events, repeats, garbage, and what a zombie wrote."""
    records = {number: [] for number in range(partitions)}
    epoch = (INGEST_EPOCH, str(EPOCH).encode())

    def write(node, facts):
        events = [(envelope, encode(envelope)) for envelope in map(wrap_fact, facts)]
        records[partition_of(node, partitions)] += batches(node, events, [epoch])

    for number in range(partitions):
        changed = wrap_fact(policy_changed(0, Policy(), number))
        records[number].append(single(changed, extra=[epoch]))
    for round_ in range(rounds):
        at_ms = 600_000 * round_
        for index in range(nodes):
            node = f"node-{index}"
            devices = devices_of(node)
            if round_ == 0:
                write(node, [published(node, device, at_ms, rv=1) for device in devices])
            word = "Unhealthy" if (round_ + index) % 3 == 0 else "Healthy"
            facts = [health(node, device, at_ms + index, word, rv=10 + round_) for device in devices]
            write(node, [*facts, facts[0]] if index % 4 == 0 else facts)
            if (round_ + index) % 7 == 3:
                records[partition_of(node, partitions)].append(GARBAGE)
            if (round_ + index) % 7 == 5:
                late = health(node, devices[0], at_ms + 77, "Unknown", rv=5_000 + round_)
                old = single(wrap_fact(late), extra=[(INGEST_EPOCH, b"1")])
                records[partition_of(node, partitions)].append(old)
        for number in range(partitions):
            tick = wrap_fact(Tick(node="", partition=number, observed_at_ms=at_ms + 300_000))
            records[number].append(single(tick, extra=[epoch]))
    return records


class TinyWorker:
    """The fold of one partition."""

    def __init__(self, number):
        self._partition = Partition(number)
        self.number = number

    def _events(self, message_value, headers):
        """Return outcome, events of the record, and decisions by event id. Raises CodecError."""
        opened = unpack(message_value, headers)
        if any(name == INGEST_EPOCH and int(value) < EPOCH for name, value in headers):
            return "superseded", [], {}
        decisions = {}
        for event in opened:
            if event.envelope.event_id not in decisions:
                decided = self._partition.step(open_envelope(event.envelope))
                decisions[event.envelope.event_id] = [
                    wrap_decision(decision, event.envelope, ordinal, self._partition.policy_hash)
                    for ordinal, decision in enumerate(decided)
                ]
        return "taken", [event.envelope for event in opened], decisions

    def answer(self, offset, value, headers):
        """Return the messages of the answer: none when nothing was decided."""
        mark = (FACTS_OFFSET, str(offset).encode())
        try:
            outcome, _, decided = self._events(value, headers)
        except CodecError:
            outcome, decided = "parked", {}
        extra = [mark, (OUTCOME, outcome.encode())]
        if outcome != "taken":
            return [Message(b"", b"", extra)]
        decisions = [envelope for group in decided.values() for envelope in group]
        chunks = [
            decisions[start : start + DECISIONS_PER_PART]
            for start in range(0, len(decisions), DECISIONS_PER_PART)
        ]
        messages = []
        for place, chunk in enumerate(chunks, 1):
            part = [(PART, f"{place}/{len(chunks)}".encode())] if len(chunks) > 1 else []
            messages += batches("key", [(e, encode(e)) for e in chunk], [*extra, *part])
        return messages

    def merged(self, records):
        """Return the log that follows from all records of the partition."""
        log, offset = [], 0
        for message in records:
            try:
                _, events, decisions = self._events(message.value, message.headers)
            except CodecError:
                continue
            for envelope in events:
                for each in (envelope, *decisions.pop(envelope.event_id, ())):
                    log.append(LogRecord(self.number, offset, each, encode(each)))
                    offset += 1
        return log


def expected_log(records):
    """Return the whole log, partition after partition."""
    return [record for number in sorted(records) for record in TinyWorker(number).merged(records[number])]


def letters(settings, records):
    """Return what is parked of all records."""
    topic = settings.topics.facts
    return [
        ParkedItem(f"{topic}/{number}@{offset}", "no event", message.value)
        for number, messages in records.items()
        for offset, message in enumerate(messages)
        if message is GARBAGE
    ]


@asynccontextmanager
async def producing(settings):
    """Give out an idempotent producer."""
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap, enable_idempotence=True, acks="all", linger_ms=2
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def send(producer, topic, partition, messages):
    """Write messages in their order and wait for all of them."""
    for future in [
        await producer.send(topic, m.value, key=m.key, partition=partition, headers=list(m.headers))
        for m in messages
    ]:
        await future


def at_once():
    """Return how long is waited between two steps: a callable, so that whoever waits for the rest can hurry it."""
    return 0.0


async def publish(settings, records, *, pause_s=at_once, begin=0, end=None):
    """Write facts, a few records of every partition at a time."""
    async with producing(settings) as producer:
        longest = max(len(messages) for messages in records.values())
        for start in range(begin, longest if end is None else end, 5):
            stop = start + 5 if end is None else min(start + 5, end)
            for number, messages in records.items():
                await send(producer, settings.topics.facts, number, messages[start:stop])
            await asyncio.sleep(pause_s())


async def work(settings, records, *, pause_s=at_once, upto=None):
    """Answer every facts record of every partition once, as they come; end when all are answered."""
    async with producing(settings) as producer:
        await asyncio.gather(
            *(
                _work_partition(settings, producer, number, upto or len(messages), pause_s)
                for number, messages in records.items()
            )
        )


async def _work_partition(settings, producer, number, count, pause_s):
    topics, worker = settings.topics, TinyWorker(number)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap, enable_auto_commit=False, fetch_max_wait_ms=50
    )
    await consumer.start()
    try:
        tp = TopicPartition(topics.facts, number)
        consumer.assign([tp])
        consumer.seek(tp, 0)
        done = 0
        while done < count:
            for record in (await consumer.getmany(timeout_ms=1_000)).get(tp, []):
                if record.offset >= count:
                    break
                messages = worker.answer(record.offset, record.value, record.headers)
                if messages and dict(messages[0].headers)[OUTCOME] == b"parked":
                    letter = of_record(
                        tp.topic, number, record.offset, record.key, record.value, record.headers, "no event"
                    )
                    await send(producer, topics.parked, 0, [letter_message(letter)])
                await send(producer, topics.decisions, number, messages)
                done = record.offset + 1
                if done % 7 == 0 or done == count:
                    await send(producer, topics.decisions, number, [progress(done - 1)])
            await asyncio.sleep(pause_s())
    finally:
        await consumer.stop()


def progress(offset):
    """Return the record that says that everything up to an offset was answered."""
    return Message(b"", b"", [(FACTS_OFFSET, str(offset).encode()), (OUTCOME, b"progress")])


def place_of_letter(value):
    return read_letter(value).place
