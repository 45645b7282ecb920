"""The fold with nothing around it, and inside the shortest loop that an aiokafka program can be.

The loop keeps no state anywhere: it reads, folds, writes the answers, waits for them and commits. Whoever crashes in it begins
again at the start of the log. It is what any framework is compared with, not a way to run.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from sickbay.cloudevents import FACTS_OFFSET, INGEST_EPOCH, OUTCOME, batches, single, unpack, whole_header
from sickbay.kafka import client_arguments
from sickbay.settings import KafkaSettings
from streams.live import Answer, Live, read_record

from .history import Log
from .measured import Course, Measured, facts_among

#: How much the loop fetches at once; the same as the worker.
_FETCH_BYTES: Final = 16 * 1024 * 1024
_POLL_MS: Final = 500
_RECORDS: Final = 1_000


def fold(log: Log, total: int) -> Measured:
    """Read and fold every record in this process; what is forwarded goes to the end of its partition at once."""
    lives = [Live(number, total) for number in range(total)]
    course = Course(log.facts)
    course.begin()
    for number, message in log.records:
        opened = unpack(message.value, message.headers)
        live = lives[number]
        epoch = whole_header(message.headers, INGEST_EPOCH)
        answer = live.take(live.position, read_record(opened, epoch, number, total))
        course.took(len(opened), (o.envelope.kind for o in answer.decisions))
        for home, census in answer.forwarded:
            told = lives[home].take(
                lives[home].position, read_record(unpack(census.data, []), None, home, total)
            )
            course.took(0, (o.envelope.kind for o in told.decisions))
    return course.end()


async def loop(settings: KafkaSettings, facts: int) -> Measured:
    """Fold the facts topic by a plain loop, until every fact of the prepared log is answered and committed."""
    consumer = AIOKafkaConsumer(
        **client_arguments(settings, "bench-plain"),
        group_id=f"{settings.prefix}-plain",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    producer = AIOKafkaProducer(
        **client_arguments(settings, "bench-plain"),
        acks="all",
        linger_ms=2,
        max_batch_size=128 * 1024,
        max_request_size=2 * 1024 * 1024,
    )
    topics = settings.topics
    lives = [Live(number, settings.partitions) for number in range(settings.partitions)]
    course = Course(facts)
    consumer.subscribe([topics.facts])
    await producer.start()
    await consumer.start()
    try:
        while not course.whole:
            waiting = []
            found = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_RECORDS)
            for tp, records in found.items():
                course.begin()
                for record in records:
                    opened = unpack(record.value, record.headers)
                    epoch = whole_header(record.headers, INGEST_EPOCH)
                    answer = lives[tp.partition].take(
                        record.offset, read_record(opened, epoch, tp.partition, settings.partitions)
                    )
                    course.took(facts_among(opened), (o.envelope.kind for o in answer.decisions))
                    waiting += await _say(producer, settings, record.offset, tp, answer)
            await asyncio.gather(*waiting)
            if found:
                await consumer.commit({tp: records[-1].offset + 1 for tp, records in found.items()})
        return course.end()
    finally:
        await consumer.stop()
        await producer.stop()


async def _say(
    producer: AIOKafkaProducer, settings: KafkaSettings, offset: int, tp: TopicPartition, answer: Answer
) -> list[asyncio.Future[object]]:
    topics = settings.topics
    messages = [
        (topics.facts, partition, single(opened.envelope, opened.data))
        for partition, opened in answer.forwarded
    ]
    if answer.decisions:
        key = answer.decisions[0].envelope.stream_id or f"partition/{tp.partition}"
        extra = [(FACTS_OFFSET, b"%d" % offset), (OUTCOME, b"taken")]
        events = [(o.envelope, o.data) for o in answer.decisions]
        messages += [(topics.decisions, tp.partition, message) for message in batches(key, events, extra)]
    return [
        await producer.send(
            topic, message.value, key=message.key, partition=partition, headers=message.headers
        )
        for topic, partition, message in messages
    ]
