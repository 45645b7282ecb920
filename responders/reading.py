"""The decisions topic, read whole and then followed: what a responder knows the world should be like.

Every partition is assigned by hand: a responder sees all of them, whoever else runs. It begins at the beginning, because a level is
made of everything that was ever decided, and it must not act before it has read what stood in the topic when it began
(``caught_up``): half a history is another history. An answer that a worker gave again after a crash is passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from sickbay.cloudevents import FACTS_OFFSET, OUTCOME, PART, Headers, header, unpack, whole_header
from sickbay.codec import open_envelope
from sickbay.decisions import Decision
from sickbay.envelope import Envelope
from sickbay.errors import CodecError, ServiceError
from sickbay.kafka import client_arguments, let_go, translated
from sickbay.operations.failpoints import reach
from sickbay.operations.health import Progress, Told
from sickbay.operations.topics import check_topics
from sickbay.settings import KafkaSettings

_log: Final = logging.getLogger(__name__)

#: How long one wait for records takes at most, and so how soon a stop is heard.
_POLL_MS: Final = 200
#: Records that are folded before others get their turn: who asks this process must not wait for a storm.
_TURN: Final = 50
#: How often it is asked where the partitions end.
_LOOK_S: Final = 1.0

Fold = Callable[[Envelope, Decision], None]


class Answered:
    """How far one partition was answered: a worker that was killed gives its newest answers again, and they are old by then."""

    def __init__(self) -> None:
        self._newest = (-1, 0)

    def is_news(self, facts_offset: int, part: int) -> bool:
        """Whether this part of the answer to a facts record was not seen before, and note it."""
        if (facts_offset, part) <= self._newest:
            return False
        self._newest = (facts_offset, part)
        return True


class Decisions:
    """The decisions of every partition, given to ``fold`` in the order of each partition.

    ``kinds`` are those that are wanted; others are passed over without being read whole. ``changed`` is set whenever something was
    folded. Whoever waits on it clears it.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        fold: Fold,
        kinds: frozenset[str],
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._on_refused = on_refused
        self._fold = fold
        self._kinds = kinds
        self._answered = {number: Answered() for number in range(settings.partitions)}
        self._ends: dict[TopicPartition, int] = {}
        self.changed = asyncio.Event()
        self.caught_up = asyncio.Event()
        self.ready = Told("decisions", "it reads what was decided so far")
        self.progress = Progress("decisions")
        #: Records and events that were read, and records that could not be.
        self.records = self.events = self.refused = 0
        #: The newest facts offset of each partition that was answered, with decisions or a mark, and is folded.
        self.answered: dict[int, int] = {}

    async def run(self) -> None:
        """Read until cancelled. Raises ServiceError when Kafka, or the topic, cannot be used."""
        settings = self._settings
        await check_topics(settings)
        topic = settings.topics.decisions
        consumer = AIOKafkaConsumer(
            **client_arguments(settings, "sickbay-respond"),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            max_poll_records=2_000,
        )
        with translated(settings):
            await consumer.start()
            try:
                partitions = [TopicPartition(topic, number) for number in range(settings.partitions)]
                consumer.assign(partitions)
                begins = await consumer.beginning_offsets(partitions)
                for tp, begin in begins.items():
                    if begin:
                        raise ServiceError(
                            f"{tp.topic}/{tp.partition} begins at offset {begin}: decisions were deleted, and no level can be told"
                            " without them; restore the topic from a copy"
                        )
                    consumer.seek(tp, 0)
                self._ends = await consumer.end_offsets(partitions)
                await self._follow(consumer, partitions)
            finally:
                await let_go(consumer)

    async def _follow(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        positions = dict.fromkeys(partitions, 0)
        while True:
            fetched: dict[TopicPartition, list[Any]] = await consumer.getmany(timeout_ms=_POLL_MS)
            for tp, records in fetched.items():
                for record in records:
                    self._take(tp, record)
                    positions[tp] = record.offset + 1
                    if record.offset % _TURN == 0:
                        await asyncio.sleep(0)
            if fetched:
                self.progress.moved()
                self.changed.set()
                reach("respond.folded")
            if loop.time() - looked_at >= _LOOK_S or not self.caught_up.is_set():
                looked_at = loop.time()
                if self.caught_up.is_set():
                    self._ends = await consumer.end_offsets(partitions)
                if all(positions[tp] >= self._ends[tp] for tp in partitions):
                    self.progress.idle()
                    if not self.caught_up.is_set():
                        _log.info("read what was decided so far", extra={"events": self.events})
                        self.ready.ready()
                        self.caught_up.set()
                        self.changed.set()
                else:
                    self.progress.waits()

    def _take(self, tp: TopicPartition, record: Any) -> None:
        self.records += 1
        place = f"{tp.topic}/{tp.partition}@{record.offset}"
        try:
            if header(record.headers, OUTCOME) != "taken":
                self._has_answered(tp.partition, whole_header(record.headers, FACTS_OFFSET))
                return
            offset, part = _place(record.headers)
            if not self._answered[tp.partition].is_news(offset, part):
                return
            for opened in unpack(record.value, record.headers):
                if opened.envelope.kind in self._kinds:
                    self._open(opened.envelope, place)
            # the parts of an answer come one after the other, so the record before is answered whole
            self._has_answered(tp.partition, offset if _is_last(record.headers) else offset - 1)
        except CodecError as error:
            self._refuse(place, error)

    def _open(self, envelope: Envelope, place: str) -> None:
        try:
            event = open_envelope(envelope)
        except CodecError as error:
            self._refuse(place, error)
            return
        assert isinstance(event, Decision)
        self._fold(envelope, event)
        self.events += 1

    def _refuse(self, place: str, error: CodecError) -> None:
        """Count what cannot be read; the projector parks it, and nothing else is lost."""
        self.refused += 1
        self._on_refused()
        _log.warning("%s is passed over: %s", place, error)

    def _has_answered(self, partition: int, offset: int | None) -> None:
        if offset is not None:
            self.answered[partition] = max(offset, self.answered.get(partition, -1))


def _is_last(headers: Headers) -> bool:
    part, _, parts = (header(headers, PART) or "1/1").partition("/")
    return part == parts


def _place(headers: Headers) -> tuple[int, int]:
    """Return which facts record is answered, and which part of the answer this is. Raises CodecError when no worker wrote it."""
    facts_offset = whole_header(headers, FACTS_OFFSET)
    part = (header(headers, PART) or "1/1").partition("/")[0]
    if facts_offset is None or not (part.isascii() and part.isdigit()):
        raise CodecError(f"it has no {FACTS_OFFSET}, or a {PART} that is none: no worker wrote it")
    return facts_offset, int(part)
