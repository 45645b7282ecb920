"""What a responder did, told as facts: into the facts topic, like what people ask for.

The id of a report follows from what it reports, so one that is told twice, by a process that was killed in between, is one fact.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, Self

from aiokafka import AIOKafkaProducer

from sickbay.cloudevents import single
from sickbay.codec import wrap_fact
from sickbay.envelope import partition_of
from sickbay.facts import Request
from sickbay.kafka import let_go, started_producer, translated
from sickbay.settings import KafkaSettings

#: How long the broker may take to acknowledge a report; an idempotent producer tries again for ever.
_ACKNOWLEDGE_S: Final = 30.0


class Reports(Protocol):
    """Where reports go."""

    async def report(self, fact: Request) -> None:
        """Tell a fact; it is kept when this returns. Raises ServiceError."""
        ...


class KafkaReports:
    """Reports into the facts topic; an asynchronous context manager."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None

    async def __aenter__(self) -> Self:
        """Connect. Raises ServiceError."""
        self._producer = await started_producer(self._settings, "sickbay-respond")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        if self._producer is not None:
            await let_go(self._producer)

    async def report(self, fact: Request) -> None:
        """Tell a fact; it is kept when this returns. Raises ServiceError when the broker does not take it."""
        assert self._producer is not None
        message = single(wrap_fact(fact))
        number = getattr(fact, "partition", None)
        with translated(self._settings):
            async with asyncio.timeout(_ACKNOWLEDGE_S):
                await self._producer.send_and_wait(
                    self._settings.topics.facts,
                    message.value,
                    key=message.key,
                    partition=partition_of(fact.node, self._settings.partitions)
                    if number is None
                    else number,
                    headers=message.headers,
                )
