"""The topic of alerts: the newest state of each, for everybody, and the memory of the process that tells them.

Compacted, one partition, keyed by the alert's id: a record is the event of the newest state; a record without a value says that
the alert is over and everybody knows. The header ``sickbay-told`` says which sinks were told, and is nobody else's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol, Self

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from responders.alerts.book import Entry, Notice
from responders.alerts.event import attributes, data_of
from sickbay.cloudevents import header
from sickbay.errors import CodecError, ServiceError
from sickbay.kafka import client_arguments, let_go, started_producer, translated
from sickbay.operations.respond_metrics import RespondMetrics
from sickbay.settings import KafkaSettings

TOLD: Final = "sickbay-told"
#: How long the broker may take to acknowledge what is kept at once.
_ACKNOWLEDGE_S: Final = 30.0
#: How long the topic may take to be read: it holds what stands.
_READ_S: Final = 60.0
_CLIENT: Final = "sickbay-respond"

_log: Final = logging.getLogger(__name__)
_read: Final = msgspec.json.Decoder(Notice).decode


class Memory(Protocol):
    """Where states are kept."""

    async def keep(self, entries: Mapping[str, Entry | None]) -> None:
        """Keep these; they are kept when this returns. Raises ServiceError."""
        ...


class NoMemory:
    """Nothing is kept: a restart tells again what stands."""

    async def keep(self, entries: Mapping[str, Entry | None]) -> None:
        """Do nothing."""


class TopicMemory:
    """The topic of alerts; an asynchronous context manager. ``found`` is what it held at the start."""

    def __init__(self, settings: KafkaSettings, metrics: RespondMetrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._producer: AIOKafkaProducer | None = None
        self.found: dict[str, Entry] = {}

    async def __aenter__(self) -> Self:
        """Connect and read what is kept. Raises ServiceError."""
        with translated(self._settings):
            async with asyncio.timeout(_READ_S):
                await self._read()
        self._producer = await started_producer(self._settings, _CLIENT)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        if self._producer is not None:
            await let_go(self._producer)

    async def keep(self, entries: Mapping[str, Entry | None]) -> None:
        """Write records, in their order. Raises ServiceError when the broker does not take them."""
        try:
            await self._send(entries)
        except ServiceError:
            self._metrics.done("topic", "failed")
            raise
        for _ in entries:
            self._metrics.done("topic", "sent")

    async def _send(self, entries: Mapping[str, Entry | None]) -> None:
        assert self._producer is not None
        with translated(self._settings):
            async with asyncio.timeout(_ACKNOWLEDGE_S):
                sent = [
                    await self._producer.send(
                        self._settings.topics.alerts,
                        None if entry is None else data_of(entry.notice),
                        key=alert_id.encode(),
                        partition=0,
                        headers=[] if entry is None else headers_of(entry),
                    )
                    for alert_id, entry in entries.items()
                ]
                await asyncio.gather(*sent)

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            **client_arguments(self._settings, _CLIENT),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            place = TopicPartition(self._settings.topics.alerts, 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            end = (await consumer.end_offsets([place]))[place]
            # what was compacted away is passed over by the position, and by no record
            while await consumer.position(place) < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        self._take(record)
        finally:
            await let_go(consumer)

    def _take(self, record: Any) -> None:
        try:
            alert_id = (record.key or b"").decode()
            if record.value is None:
                self.found.pop(alert_id, None)
            else:
                self.found[alert_id] = entry_of(alert_id, record.value, header(record.headers, TOLD) or "")
        except (CodecError, UnicodeDecodeError) as error:
            _log.warning("%s@%d is passed over: %s", record.topic, record.offset, error)


def headers_of(entry: Entry) -> list[tuple[str, bytes]]:
    """Return the headers of a record: the event's attributes, and who was told."""
    event = attributes(entry.notice)
    content = event.pop("datacontenttype")
    return [
        *((f"ce_{name}", value.encode()) for name, value in event.items()),
        ("content-type", content.encode()),
        (TOLD, msgspec.json.encode(sorted(entry.told))),
    ]


def entry_of(alert_id: str, value: bytes, told: str) -> Entry:
    """Read a record back. Raises CodecError for one that is none of ours."""
    try:
        notice = _read(value)
        sinks = msgspec.json.decode(told or "[]", type=frozenset[str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"not the state of an alert: {error}") from error
    if notice.alert_id != alert_id:
        raise CodecError("its key is not the id of its alert")
    return Entry(notice=notice, told=sinks)
