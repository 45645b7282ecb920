"""Dead letters in Kafka: written so that nothing moves on before they are safe, read back, and tried again.

What cannot be used is parked and acknowledged **before** the position behind it is kept (faults.md D3, T8); a letter that could
not be parked stops the one who parks. Trying again writes the original bytes once more, behind everything that came since: who
folds must not mind, because every event has its identity.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from sickbay.deadletters import RETRIED, VALUE_BYTES_MAX, DeadLetter, letter_message, read_letter
from sickbay.errors import CodecError, InputError, ServiceError
from sickbay.kafka import client_arguments, let_go, started_producer, topic_identity, translated
from sickbay.operations.failpoints import reach
from sickbay.settings import KafkaSettings
from sickbay.topics import Topics

#: How long the acknowledgement of one letter, or one read without a record, may take.
LIMIT_S: Final = 60.0
#: Letters on their way at a time.
_AT_ONCE: Final = 100


async def park(producer: AIOKafkaProducer, topics: Topics, letters: Iterable[DeadLetter]) -> int:
    """Write letters, wait until Kafka has all of them for good, and return how many they were.

    The producer must be started, with ``acks="all"``. Raises ServiceError when one was not acknowledged in ``LIMIT_S`` seconds:
    nothing may move on then, and parking the same letters again is no harm.
    """
    waiting = list(letters)
    for begin in range(0, len(waiting), _AT_ONCE):
        chunk = [letter_message(letter) for letter in waiting[begin : begin + _AT_ONCE]]
        try:
            async with asyncio.timeout(LIMIT_S):
                acknowledged = [
                    await producer.send(topics.parked, key=each.key, value=each.value, headers=each.headers)
                    for each in chunk
                ]
                await asyncio.gather(*acknowledged)
        except (KafkaError, OSError, TimeoutError) as error:
            raise ServiceError(
                f"{len(chunk)} dead letters, the first of {waiting[begin].place}, could not be written to {topics.parked}:"
                f" {str(error) or type(error).__name__}"
            ) from error
        reach("parking.acknowledged")
    return len(waiting)


class Parked(NamedTuple):
    """One letter as it lies in Kafka."""

    letter: DeadLetter
    #: When it was parked.
    parked_ms: int
    #: Where in the dead-letter topic.
    partition: int
    offset: int

    @property
    def retried_from(self) -> str:
        """The place of the letter that was tried again as this record; empty when it is the first."""
        value = next((content for name, content in self.letter.headers if name == RETRIED), b"")
        return value.decode("utf-8", "backslashreplace")


async def read_parked(
    settings: KafkaSettings, *, since_ms: int | None = None
) -> AsyncGenerator[Parked, None]:
    """Yield every letter that is parked up to now, from the oldest on, or those parked at ``since_ms`` or later.

    A record that is no letter comes as one that says so. Raises ServiceError.
    """
    topic = settings.topics.parked
    await topic_identity(settings, topic)  # a consumer of a topic that is not there may make one
    with translated(settings):
        # not seek_to_beginning: an answer that is on its way to the consumer's own first question undoes it (aiokafka 0.14)
        consumer = AIOKafkaConsumer(
            topic,
            **client_arguments(settings, "sickbay-parked"),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            async for record in _records(consumer, since_ms):
                try:
                    letter = read_letter(record.value)
                except CodecError as error:
                    letter = _no_letter(record, str(error))
                yield Parked(letter, record.timestamp, record.partition, record.offset)
        finally:
            await let_go(consumer)


async def _records(consumer: AIOKafkaConsumer, since_ms: int | None) -> AsyncIterator[Any]:
    held = sorted(consumer.assignment())
    ends = await consumer.end_offsets(held)
    if since_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(held, since_ms))
        for partition in held:
            place = found.get(partition)
            consumer.seek(partition, place.offset if place else ends[partition])
    waiting_since = time.monotonic()
    while waiting := await _waiting(consumer, held, ends):
        got = await consumer.getmany(*waiting, timeout_ms=1_000, max_records=100)
        if got:
            waiting_since = time.monotonic()
        elif time.monotonic() - waiting_since > LIMIT_S:
            raise TimeoutError(f"no record came for {LIMIT_S:.0f} s, before the end of what is parked")
        for partition, batch in got.items():
            for record in batch:
                if record.offset < ends[partition]:
                    yield record


async def _waiting(consumer: AIOKafkaConsumer, held: Iterable[Any], ends: Mapping[Any, int]) -> list[Any]:
    """Return the partitions of which there is more. Raises TimeoutError when one has no position in time."""
    async with asyncio.timeout(LIMIT_S):
        return [partition for partition in held if await consumer.position(partition) < ends[partition]]


def _no_letter(record: Any, problem: str) -> DeadLetter:
    value = record.value or b""
    return DeadLetter(
        place=f"{record.topic}/{record.partition}@{record.offset}",
        reason=problem,
        value=value[:VALUE_BYTES_MAX],
        value_bytes=len(value),
    )


def why_not(letter: DeadLetter, topics: Topics) -> str | None:
    """Return why a letter cannot be tried again, ``None`` when it can."""
    if not letter.topic:
        return "it is no record of a topic"
    if letter.topic not in (topics.facts, topics.decisions):
        # the newest record of a key is what counts in the compacted topics, and an old one would become it
        return f"{letter.topic} takes no old record again"
    if not letter.is_whole:
        return f"only {len(letter.value)} of its {letter.value_bytes} bytes were kept"
    return None


class Retrier:
    """Writes original bytes again, one letter after the other; an asynchronous context manager."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._known: set[str] = set()

    async def __aenter__(self) -> Self:
        """Connect. Raises ServiceError."""
        self._producer = await started_producer(self._settings, "sickbay-parked")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go."""
        if self._producer is not None:
            await let_go(self._producer)

    async def write(self, letter: DeadLetter) -> str:
        """Write a letter's record to its topic and partition again, and return the place that it has now.

        Raises InputError for one that cannot be tried again, ServiceError when it is not acknowledged: it may be written then.
        """
        producer = self._producer
        assert producer is not None, "used outside its context"
        problem = why_not(letter, self._settings.topics)
        if problem is not None:
            raise InputError(f"{letter.place} cannot be tried again: {problem}")
        if letter.topic not in self._known:
            # a producer of a topic that is not there may make one
            await topic_identity(self._settings, letter.topic)
            self._known.add(letter.topic)
        headers = [(name, content) for name, content in letter.headers if name != RETRIED]
        headers.append((RETRIED, letter.place.encode("utf-8", "backslashreplace")))
        with translated(self._settings):
            async with asyncio.timeout(LIMIT_S):
                if letter.partition not in await producer.partitions_for(letter.topic):
                    raise InputError(
                        f"{letter.place} cannot be tried again: {letter.topic} has no partition {letter.partition}"
                    )
                written = await producer.send_and_wait(
                    letter.topic,
                    value=letter.value,
                    key=letter.key or None,
                    partition=letter.partition,
                    headers=headers,
                )
        return f"{written.topic}/{written.partition}@{written.offset}"
