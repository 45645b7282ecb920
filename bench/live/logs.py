"""Prepared logs: records in a file for the processes that fold them, and in the facts topic. It must not measure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from sickbay.cloudevents import Message
from sickbay.kafka import client_arguments
from sickbay.settings import KafkaSettings

from .history import Log

#: Records under way while a topic is filled.
_UNDER_WAY: Final = 5_000
_Stored: TypeAlias = tuple[int, list[tuple[int, bytes, bytes, list[tuple[str, bytes]]]]]


def save(path: Path, log: Log) -> None:
    """Write a log to a file."""
    path.write_bytes(
        msgspec.msgpack.encode((log.facts, [(number, *message) for number, message in log.records]))
    )


def load(path: Path) -> Log:
    """Read a log back."""
    facts, records = msgspec.msgpack.decode(path.read_bytes(), type=_Stored)
    return Log([(number, Message(*message)) for number, *message in records], facts)


async def fill(settings: KafkaSettings, records: Iterable[tuple[int, Message]]) -> None:
    """Write records to the facts topic in their order."""
    producer = AIOKafkaProducer(
        **client_arguments(settings, "bench-fill"),
        enable_idempotence=True,
        linger_ms=5,
        max_batch_size=512 * 1024,
        max_request_size=2 * 1024 * 1024,
    )
    await producer.start()
    try:
        waiting: list[asyncio.Future[object]] = []
        for number, message in records:
            waiting.append(
                await producer.send(
                    settings.topics.facts,
                    message.value,
                    key=message.key,
                    partition=number,
                    headers=message.headers,
                )
            )
            if len(waiting) == _UNDER_WAY:
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
    finally:
        await producer.stop()


async def ends(settings: KafkaSettings, topic: str) -> dict[int, int]:
    """Return partition to the offset behind its last record."""
    consumer = AIOKafkaConsumer(**client_arguments(settings, "bench-ends"))
    await consumer.start()
    try:
        found: dict[TopicPartition, int] = await consumer.end_offsets(
            [TopicPartition(topic, number) for number in range(settings.partitions)]
        )
        return {tp.partition: end for tp, end in found.items()}
    finally:
        await consumer.stop()
