"""Making the topics of a test's own installation, and reading one back whole."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from sickbay.kafka import client_arguments
from sickbay.settings import KafkaSettings


async def make_topics(settings: KafkaSettings, known: dict[str, str] | None = None) -> None:
    """Make every topic that is declared; ``known`` is further configuration of the topic of known facts."""
    admin = AIOKafkaAdminClient(**client_arguments(settings, "tests"))
    await admin.start()
    try:
        made = await admin.create_topics(
            [
                NewTopic(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=settings.replication,
                    topic_configs={
                        **topic.config,
                        **(known if known and topic.name == settings.topics.known else {}),
                    },
                )
                for topic in settings.topics.declared(settings.partitions)
            ]
        )
        errors = [error for error in made.topic_errors if error[1]]
        assert not errors, errors
        names = {topic.name for topic in settings.topics.declared(settings.partitions)}
        # the broker that answered may hear of them a little later than the controller
        async with asyncio.timeout(20):
            while not names <= set(await admin.list_topics()):  # noqa: ASYNC110 - the broker tells no event
                await asyncio.sleep(0.05)
    finally:
        await admin.close()


async def read_all(settings: KafkaSettings, topic: str, partitions: int) -> dict[int, list[Any]]:
    """Return the records of a topic by partition, to the end that it has now."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    consumer = AIOKafkaConsumer(
        **client_arguments(settings, "tests"),
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        out: dict[int, list[Any]] = {number: [] for number in range(partitions)}
        async with asyncio.timeout(30):
            while any([await consumer.position(place) < ends[place] for place in places]):
                for place, records in (await consumer.getmany(timeout_ms=100)).items():
                    out[place.partition] += records
        return out
    finally:
        await consumer.stop()
