"""What the projector and the proof of the live log share in reading topics: whether a place can be read from, and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from projections.records import ParkedItem
from sickbay.deadletters import read_letter
from sickbay.errors import CodecError, ServiceError

#: What a database holds in a column of numbers.
_NUMBER_MAX: Final = 2**63 - 1


async def require_readable(
    consumer: AIOKafkaConsumer, spans: Mapping[TopicPartition, tuple[int, int]]
) -> None:
    """Raise ServiceError unless every partition still holds what is to be read.

    ``spans`` are the offset from which on nothing may be missing (T1), and the one that was read up to, before which the partition
    must not end (T12).
    """
    if not spans:
        return
    begins = await consumer.beginning_offsets(list(spans))
    ends = await consumer.end_offsets(list(spans))
    for tp, (start, known) in sorted(spans.items()):
        if begins[tp] > start:
            raise ServiceError(
                f"{tp.topic}/{tp.partition} begins at offset {begins[tp]} and is to be read from {start}: records were deleted, and"
                " a log with a hole is none; restore the topic, or replay the recordings into a new database"
            )
        if ends[tp] < known:
            raise ServiceError(
                f"{tp.topic}/{tp.partition} ends at offset {ends[tp]} and was read up to {known}: Kafka lost records that the store"
                " holds; restore the topic, or project what is left into a new database"
            )


def letter_item(tp: TopicPartition, record: Any) -> ParkedItem:
    """Return what the store keeps of a record of the dead-letter topic; one that is no letter is kept as it is."""
    try:
        letter = read_letter(record.value)
    except CodecError as error:
        return ParkedItem(f"{tp.topic}/{tp.partition}@{record.offset}", str(error), record.value or b"")
    at_ms = letter.at_ms if letter.at_ms is not None and abs(letter.at_ms) <= _NUMBER_MAX else None
    return ParkedItem(letter.place, letter.reason, letter.value, at_ms)
