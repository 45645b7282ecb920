"""Reading back what was told: the topic of known facts to its end, and the facts that it does not cover.

What it finds is judged in ``ingest.remembering``. Here stands how a stretch of a topic is read: to the end that it had when the
reading began, also where compaction took the last records (faust-streaming/faust#597, C51), and never for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from ingest.remembering import PartitionMemory
from sickbay.errors import ServiceError
from sickbay.kafka import client_arguments, translated
from sickbay.settings import KafkaSettings

#: How long a reading may make no progress before it fails.
STALL_S: Final = 60.0
_FETCH_WAIT_MS: Final = 100
_POLL_MS: Final = 200
_STOP_S: Final = 5.0
#: Empty answers at one place after which nothing stands there: the first may have been asked before the place was reached.
_EMPTY: Final = 2


async def recall_partitions(
    settings: KafkaSettings, *, stall_s: float = STALL_S
) -> dict[int, PartitionMemory]:
    """Return what each partition remembers.

    Raises ServiceError when Kafka cannot be reached or stops answering, when a topic is missing or has other partitions, and
    when facts that are needed were deleted (faults, T1).
    """
    topics = settings.topics
    with translated(settings):
        count = settings.partitions
        await _require(settings, {topics.facts: count, topics.known: count, topics.parked: 1})
        async with _consumer(settings) as consumer:
            memories = {number: PartitionMemory() for number in range(settings.partitions)}
            starts, ends = await _bounds(consumer, topics.known, memories)
            spans = {number: (starts[number], ends[number]) for number in memories}
            async for number, records in _read(consumer, topics.known, spans, stall_s):
                for record in records:
                    memories[number].known(record.key, record.value, record.headers)
            starts, ends = await _bounds(consumer, topics.facts, memories)
            spans = {}
            for number, memory in memories.items():
                begin = memory.judge(ends[number])
                if begin < starts[number]:
                    raise ServiceError(
                        f"{topics.facts}/{number} begins at offset {starts[number]}, and what was told from offset {begin}"
                        " on is needed: facts were deleted; the topic must keep everything (`sickbay topics check`)"
                    )
                spans[number] = (begin, ends[number])
                await asyncio.sleep(0)  # judging takes its time, and the Lease must be renewed
            async for number, records in _read(consumer, topics.facts, spans, stall_s):
                for record in records:
                    memories[number].fact(record.offset, record.value, record.headers)
            for number, memory in memories.items():
                memory.read_until(ends[number])
            return memories


async def read_facts(
    settings: KafkaSettings, partition: int, begin: int, end: int, *, stall_s: float = STALL_S
) -> list[Any]:
    """Return the facts records of one stretch. Raises ServiceError."""
    out: list[Any] = []
    with translated(settings):
        async with _consumer(settings) as consumer:
            async for _, records in _read(
                consumer, settings.topics.facts, {partition: (begin, end)}, stall_s
            ):
                out += records
    return out


@asynccontextmanager
async def _consumer(settings: KafkaSettings) -> AsyncIterator[Any]:
    consumer = AIOKafkaConsumer(
        **client_arguments(settings, "sickbay-recall"),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=_FETCH_WAIT_MS,
    )
    try:
        await consumer.start()
        yield consumer
    finally:
        with suppress(TimeoutError):
            await asyncio.wait_for(consumer.stop(), _STOP_S)


async def _require(settings: KafkaSettings, topics: Mapping[str, int]) -> None:
    """Raises ServiceError for a topic that is missing or has other partitions (faults, T5, T7)."""
    admin = AIOKafkaAdminClient(**client_arguments(settings, "sickbay-recall"))
    try:
        await admin.start()
        # all of them: naming one may make it
        there = {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
    finally:
        await admin.close()
    for topic, count in topics.items():
        found = there.get(topic, 0)
        if found != count:
            raise ServiceError(
                f"{topic} at {settings.bootstrap} has {found} partitions and must have {count};"
                " `sickbay topics check` says what is wrong, `sickbay topics apply` makes what is missing"
            )


async def _bounds(
    consumer: Any, topic: str, numbers: Mapping[int, Any]
) -> tuple[dict[int, int], dict[int, int]]:
    places = [TopicPartition(topic, number) for number in numbers]
    starts = await consumer.beginning_offsets(places)
    ends = await consumer.end_offsets(places)
    return (
        {place.partition: offset for place, offset in starts.items()},
        {place.partition: offset for place, offset in ends.items()},
    )


async def _read(
    consumer: Any, topic: str, spans: Mapping[int, tuple[int, int]], stall_s: float
) -> AsyncIterator[tuple[int, list[Any]]]:
    """Yield partition and records, from the first offset of each span up to and without the second."""
    ends = {TopicPartition(topic, number): end for number, (begin, end) in spans.items() if begin < end}
    if not ends:
        return
    consumer.assign(list(ends))
    for place in ends:
        consumer.seek(place, spans[place.partition][0])
    loop = asyncio.get_running_loop()
    progress_s = loop.time()
    asked: dict[Any, tuple[int, int | None, int]] = {}
    while ends:
        got = await consumer.getmany(timeout_ms=_POLL_MS)
        for place, records in got.items():
            progress_s = loop.time()
            if place in ends:
                yield place.partition, [record for record in records if record.offset < ends[place]]
        for place, end in list(ends.items()):
            position = await consumer.position(place)
            asked[place] = _answered(asked.get(place), position, consumer.last_poll_timestamp(place))
            # a new leader may not know yet that what stands below the end is committed, and answers as if nothing were there
            committed = (consumer.highwater(place) or 0) >= end
            if position >= end or (committed and asked[place][2] >= _EMPTY):
                del ends[place]
                consumer.pause(place)
        if loop.time() - progress_s > stall_s:
            raise ServiceError(
                f"reading {topic} stood still for {stall_s:.0f} s with {len(ends)} partitions to go; see whether Kafka serves"
            )


def _answered(
    before: tuple[int, int | None, int] | None, position: int, at_ms: int | None
) -> tuple[int, int | None, int]:
    """Count the answers without a record at one position: position, time of the last answer, how many."""
    if before is None or before[0] != position:
        return position, at_ms, 0
    return position, at_ms, before[2] + (at_ms != before[1])
