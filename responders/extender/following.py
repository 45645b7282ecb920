"""The facts that the extender needs, followed from where a recall ended: nodes, Pods, words on devices, ticks.

What was told before is recalled by the composition root (the topic of known facts and what it does not cover), since reading the
facts from their beginning would take longer with every day. A service that is away is waited for, and what was read stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from sickbay.cloudevents import INGEST_EPOCH, unpack, whole_header
from sickbay.codec import decode_envelope, open_envelope
from sickbay.errors import CodecError, ServiceError
from sickbay.facts import Fact
from sickbay.kafka import client_arguments, let_go, translated
from sickbay.operations.health import Progress, Told
from sickbay.settings import KafkaSettings

_log: Final = logging.getLogger(__name__)

_POLL_MS: Final = 200
_POLL_RECORDS_MAX: Final = 500
#: Facts that are folded before others get their turn: an answer must not wait for a storm.
_TURN: Final = 50
#: Pause after a failure, doubled up to the longest.
_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 30.0

#: ``(partition, offset, fact)``
Fold = Callable[[int, int, Fact], None]


class Recalled(NamedTuple):
    """What a partition held."""

    #: The events of its newest facts, as canonical bytes.
    events: Iterable[bytes]
    #: The first offset of the facts that is not in them, and the newest leader of ingest before it.
    until: int
    epoch: int


Recall = Callable[[], Awaitable[Mapping[int, Recalled]]]


class Facts:
    """The facts of some kinds, the newest of each subject first, then as they come."""

    def __init__(
        self,
        settings: KafkaSettings,
        recall: Recall,
        fold: Fold,
        kinds: frozenset[str],
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_refused = on_refused
        self._settings, self._recall, self._fold, self._kinds = settings, recall, fold, kinds
        self._positions: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self.caught_up = asyncio.Event()
        self.ready = Told("facts", "it reads what was told so far")
        self.progress = Progress("facts")
        #: Facts that were folded, and records that could not be read.
        self.facts = self.refused = 0

    async def run(self) -> None:
        """Read until cancelled."""
        pause_s = _PAUSE_S
        while True:
            try:
                if not self._positions:
                    await self._begin()
                await self._follow()
            except ServiceError as error:
                # what is known grows old meanwhile, and the answers say so by policy
                _log.warning("facts are read again in %.1f s: %s", pause_s, error)
                self.ready.failed(str(error))
                self.progress.failed()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _begin(self) -> None:
        recalled = await self._recall()
        for number, partition in recalled.items():
            for count, data in enumerate(partition.events):
                try:
                    envelope = decode_envelope(data)
                    if envelope.kind in self._kinds:
                        self._take(number, partition.until - 1, open_envelope(envelope))
                except CodecError as error:
                    self._refuse(f"a known fact of partition {number}", error)
                if count % _TURN == 0:
                    await asyncio.sleep(0)
        self._epochs = {number: partition.epoch for number, partition in recalled.items()}
        self._positions = {number: partition.until for number, partition in recalled.items()}

    async def _follow(self) -> None:
        settings = self._settings
        with translated(settings):
            consumer = AIOKafkaConsumer(
                **client_arguments(settings, "sickbay-respond"),
                enable_auto_commit=False,
                auto_offset_reset="none",
                fetch_max_wait_ms=100,
                max_poll_records=_POLL_RECORDS_MAX,
            )
            await consumer.start()
            try:
                places = [TopicPartition(settings.topics.facts, number) for number in self._positions]
                consumer.assign(places)
                for place in places:
                    consumer.seek(place, self._positions[place.partition])
                ends = await consumer.end_offsets(places)
                while True:
                    fetched: dict[TopicPartition, list[Any]] = await consumer.getmany(timeout_ms=_POLL_MS)
                    for place, records in fetched.items():
                        await self._records(place.partition, records)
                    self.progress.moved()
                    if not self.caught_up.is_set() and all(
                        self._positions[place.partition] >= end for place, end in ends.items()
                    ):
                        _log.info("read what was told so far", extra={"facts": self.facts})
                        self.caught_up.set()
                    if self.caught_up.is_set():
                        self.ready.ready()
            finally:
                await let_go(consumer)

    async def _records(self, number: int, records: list[Any]) -> None:
        for record in records:
            try:
                self._record(number, record)
            except CodecError as error:
                self._refuse(f"{record.topic}/{number}@{record.offset}", error)
            self._positions[number] = record.offset + 1
            if record.offset % _TURN == 0:
                await asyncio.sleep(0)

    def _record(self, number: int, record: Any) -> None:
        epoch = whole_header(record.headers, INGEST_EPOCH)
        if epoch is None:
            return  # a person's or a responder's, and none of these kinds
        if epoch < self._epochs[number]:
            return  # of a leader that had been replaced (docs/live.md)
        self._epochs[number] = epoch
        for opened in unpack(record.value, record.headers):
            if opened.envelope.kind in self._kinds:
                try:
                    event = open_envelope(opened.envelope)
                except CodecError as error:
                    self._refuse(f"{record.topic}/{number}@{record.offset}", error)
                else:
                    self._take(number, record.offset, event)

    def _refuse(self, place: str, error: CodecError) -> None:
        """Count what cannot be read; a worker parks it, and nothing else is lost."""
        self.refused += 1
        self._on_refused()
        _log.warning("%s is passed over: %s", place, error)

    def _take(self, number: int, offset: int, event: object) -> None:
        assert isinstance(event, Fact)
        self._fold(number, offset, event)
        self.facts += 1
