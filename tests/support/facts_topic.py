"""The topic of facts as a consumer finds it, and the environment of the processes that write it."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from sickbay.cloudevents import INGEST_EPOCH, unpack, whole_header
from sickbay.codec import open_envelope


def variables(settings, **extra):
    return {
        "SICKBAY_KAFKA_BOOTSTRAP": settings.bootstrap,
        "SICKBAY_KAFKA_PREFIX": settings.prefix,
        "SICKBAY_KAFKA_PARTITIONS": str(settings.partitions),
        "SICKBAY_KAFKA_REPLICATION": str(settings.replication),
    } | extra


def told(settings):
    """Return ``(ingest epoch, event id, fact)`` of every fact of the topic, by partition."""

    async def read():
        consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.bootstrap, group_id=None, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            places = [TopicPartition(settings.topics.facts, number) for number in range(settings.partitions)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            found = []
            for place in places:
                while await consumer.position(place) < ends[place]:
                    for record in (await consumer.getmany(place, timeout_ms=1000)).get(place, ()):
                        epoch = whole_header(record.headers, INGEST_EPOCH)
                        found += [
                            (epoch, opened.envelope.event_id, open_envelope(opened.envelope))
                            for opened in unpack(record.value, record.headers)
                        ]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())
