"""Bringing records to Kafka in order and for good: an idempotent producer, replaced when it cannot go on.

aiokafka's producer retries what a broker may take later, and is of no use any more once one of its batches failed: the numbers
of the next ones do not follow (aiokafka #1017; faults, P7). Then a new one sends again what was not acknowledged, and in each
partition what stands behind it, so that the order ends right; repeats are recognised by their ids. It must not decide what is
sent, and loses nothing: a record is acknowledged or the delivery fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidProducerIdMapping,
    KafkaError,
    KafkaTimeoutError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    UnknownProducerId,
)

from sickbay.cloudevents import Message
from sickbay.errors import ServiceError
from sickbay.kafka import client_arguments
from sickbay.settings import KafkaSettings
from sickbay.topics import RECORD_BYTES_MAX

#: How long one delivery may take before it fails; an outage up to this long only fills the queue.
DELIVERY_LIMIT_S: Final = 120.0
#: Largest request for one record: with a long key it is above the largest value.
_REQUEST_BYTES_MAX: Final = RECORD_BYTES_MAX + 48_576
#: Records that go to a partition together; the broker's limit for a batch is four times this.
_BATCH_BYTES: Final = 262_144
_LINGER_MS: Final = 1
_RETRY_S: Final = 0.5
_LET_GO_S: Final = 3.0

#: The producer's numbering is lost: a new producer begins a new one.
_SEQUENCE: Final = (OutOfOrderSequenceNumber, UnknownProducerId, InvalidProducerIdMapping)
#: The client gave up by itself.
_GIVEN_UP: Final = (KafkaTimeoutError, ProducerClosed, TimeoutError, OSError)


class Outgoing(NamedTuple):
    """A record and where it goes."""

    topic: str
    partition: int
    message: Message


def new_producer(settings: KafkaSettings) -> Any:
    """Return a producer that is not started."""
    return AIOKafkaProducer(
        **client_arguments(settings, "sickbay-ingest"),
        acks="all",
        enable_idempotence=True,
        linger_ms=_LINGER_MS,
        max_batch_size=_BATCH_BYTES,
        max_request_size=_REQUEST_BYTES_MAX,
    )


async def let_go(producer: Any) -> None:
    """End a producer at once: what it still holds is sent by another, and must not be sent by this one later."""
    # it has no public way to stop without flushing, and flushing waits for brokers
    producer._closed = True  # noqa: SLF001
    sending = producer._sender.sender_task  # noqa: SLF001
    if sending is not None:
        sending.cancel()
    with suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(_LET_GO_S):
            await producer.client.close()
    if sending is not None:
        await asyncio.wait([sending], timeout=_LET_GO_S)


class Delivery:
    """One producer after another; one delivery at a time."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        limit_s: float = DELIVERY_LIMIT_S,
        make: Callable[[KafkaSettings], Any] = new_producer,
        drop: Callable[[Any], Awaitable[None]] = let_go,
    ) -> None:
        self._settings = settings
        self._limit_s = limit_s
        self._make = make
        self._drop = drop
        self._producer: Any = None
        self._lock = asyncio.Lock()
        #: Records that were sent again.
        self.resends = 0

    async def start(self) -> None:
        """Reach Kafka. Raises ServiceError when that takes longer than the limit or is refused."""
        async with self._lock:
            await self._replace(asyncio.get_running_loop().time() + self._limit_s)

    async def deliver(self, outgoing: Sequence[Outgoing]) -> list[int]:
        """Send records, in their order within each partition, and return their offsets once all are acknowledged.

        An offset is -1 when the broker knows that it has the record and not where. Raises ServiceError after the time limit, or
        when a broker refuses for good; which of the records it took is not known then.
        """
        if not outgoing:
            return []
        async with self._lock:
            return await self._deliver(outgoing, asyncio.get_running_loop().time() + self._limit_s)

    async def _deliver(self, outgoing: Sequence[Outgoing], end: float) -> list[int]:
        offsets: list[int | None] = [None] * len(outgoing)
        numbering_lost = False
        while True:
            missing = offsets.count(None)
            error = await self._attempt(outgoing, _pending(outgoing, offsets), offsets, end)
            if error is None:
                return [-1 if offset is None else offset for offset in offsets]
            stuck = numbering_lost and offsets.count(None) == missing
            numbering_lost = isinstance(error, _SEQUENCE)
            if not _may_heal(error) or (stuck and numbering_lost):
                raise self._failed(error)
            await self._replace(end, error)
            self.resends += len(_pending(outgoing, offsets))

    async def _attempt(
        self, outgoing: Sequence[Outgoing], pending: list[int], offsets: list[int | None], end: float
    ) -> BaseException | None:
        """Send what is pending and note what is acknowledged; return the first error."""
        acks: dict[int, asyncio.Future[Any]] = {}
        failure: BaseException | None = None
        try:
            async with asyncio.timeout_at(end):
                for index in pending:
                    topic, partition, message = outgoing[index]
                    ack = await self._producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        partition=partition,
                        headers=message.headers,
                    )
                    ack.add_done_callback(_retrieve)
                    acks[index] = ack
                await asyncio.wait(acks.values(), return_when=asyncio.FIRST_EXCEPTION)
        except (KafkaError, OSError, TimeoutError) as error:
            failure = error
        for index, ack in acks.items():
            if not ack.done() or ack.cancelled():
                continue
            told = ack.exception()
            if told is None:
                offsets[index] = ack.result().offset
            else:
                failure = failure or told
        return failure

    async def _replace(self, end: float, cause: BaseException | None = None) -> None:
        """Put a new producer in the place of the one there is, if any."""
        loop = asyncio.get_running_loop()
        while True:
            before, self._producer = self._producer, None
            if before is not None:
                await self._drop(before)
            if loop.time() >= end:
                raise self._failed(cause or TimeoutError())
            self._producer = self._make(self._settings)
            try:
                async with asyncio.timeout_at(end):
                    await self._producer.start()
            except (KafkaError, OSError, TimeoutError) as error:
                if not _may_heal(error):
                    await self._discard()
                    raise self._failed(error) from error
                cause = error
                await asyncio.sleep(min(_RETRY_S, max(0.0, end - loop.time())))
            else:
                return

    async def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._drop(producer)

    def _failed(self, error: BaseException) -> ServiceError:
        told = str(error) or type(error).__name__
        failure = ServiceError(
            f"Kafka at {self._settings.bootstrap} did not take what was sent: {told};"
            " start again once it serves: what was not acknowledged is told again"
        )
        failure.__cause__ = error
        return failure

    async def close(self) -> None:
        """Let go of the producer; what was not acknowledged is not sent any more."""
        await self._discard()


def _pending(outgoing: Sequence[Outgoing], offsets: Sequence[int | None]) -> list[int]:
    """Return what is to be sent, by index: in each partition everything from the first that was not acknowledged on."""
    begun: set[tuple[str, int]] = set()
    out = []
    for index, (topic, partition, _) in enumerate(outgoing):
        if offsets[index] is None:
            begun.add((topic, partition))
        if (topic, partition) in begun:
            out.append(index)
    return out


def _may_heal(error: BaseException) -> bool:
    """Whether a new producer may have more luck; refusals and fencing do not pass (faults, P4, P16)."""
    # the bare class is what the client says when its own loop ended
    return (
        isinstance(error, (*_SEQUENCE, *_GIVEN_UP))
        or type(error) is KafkaError
        or bool(getattr(error, "retriable", False))
    )


def _retrieve(ack: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody waits for any more."""
    if not ack.cancelled():
        ack.exception()
