"""Requests to a store that follows Kafka: written into the facts topic like everything else, and decided by the workers.

The store is only read: it tells what came of the request, once workers and projector have it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Final

from projections.engine import Store
from projections.records import LogRecord
from sickbay.cloudevents import single
from sickbay.codec import fact_id, open_envelope, wrap_fact
from sickbay.errors import StoreError
from sickbay.facts import Fact
from sickbay.kafka import let_go, started_producer, translated
from sickbay.settings import KafkaSettings, kafka_settings

#: How long an answer may take: workers and projector answer within a second, a rebalance takes ten.
_PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.1


def ask_kafka(store: Store, requests: Mapping[int, Fact]) -> list[LogRecord]:
    """Write requests into their partitions of the facts topic, and return what was decided of them as the store tells it.

    Where Kafka is stands in SICKBAY_KAFKA_…. Raises InputError and ServiceError for Kafka, and StoreError when no answer comes:
    the request is recorded then, and will be answered once workers and projector run.
    """
    settings = kafka_settings(os.environ)
    begun = {number: _next_offset(store, number) for number in requests}
    # one that was asked before is one request; looked up after the places above, so that nothing comes between
    asked = store.held({number: [fact_id(request)] for number, request in requests.items()})
    new = {number: request for number, request in requests.items() if fact_id(request) not in asked}
    asyncio.run(_write(settings, new))
    answers: list[LogRecord] = []
    deadline_s = time.monotonic() + _PATIENCE_S
    for number, request in new.items():
        answers += _await_answer(store, number, begun[number], fact_id(request), deadline_s)
    return answers


def _next_offset(store: Store, number: int) -> int:
    position = store.positions().get(number)
    return 0 if position is None else position.next_offset


async def _write(settings: KafkaSettings, requests: Mapping[int, Fact]) -> None:
    producer = await started_producer(settings, "sickbay-ask")
    with translated(settings):
        try:
            async with asyncio.timeout(_PATIENCE_S):
                for number, request in requests.items():
                    message = single(wrap_fact(request))
                    await producer.send_and_wait(
                        settings.topics.facts,
                        message.value,
                        key=message.key,
                        partition=number,
                        headers=message.headers,
                    )
        finally:
            await let_go(producer)


def _await_answer(
    store: Store, number: int, from_offset: int, event_id: str, deadline_s: float
) -> list[LogRecord]:
    """Return the decisions that a request caused, opened: they stand behind it in the log, in the same transaction."""
    while True:
        records = list(store.read(number, from_offset))
        if any(record.envelope.event_id == event_id for record in records):
            return [
                record._replace(event=open_envelope(record.envelope))
                for record in records
                if record.envelope.causation_id == event_id
            ]
        if time.monotonic() > deadline_s:
            raise StoreError(
                f"{store.place}: the request is recorded in Kafka, and the store does not know it after {_PATIENCE_S:.0f} s; see"
                " that `sickbay work` and `sickbay project` run, it is answered once they do"
            )
        time.sleep(_PAUSE_S)
