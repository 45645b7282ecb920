"""The agent on the facts topic: a thin loop that hands records to the worker and never raises.

Faust acknowledges a record whose agent raised and goes on behind it (faust-streaming #315, #527), even with ``noack``, so nothing
may be raised here: what a record holds is the worker's business, and what the worker cannot go on from ends the process before
anything is acknowledged. ``concurrency`` is one: more commits past records that are still under way (#606).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from faust.types import StreamT

from streams.outlet import Delivered
from streams.worker import Worker

log: Final = logging.getLogger(__name__)


def facts_agent(
    worker: Worker, fail: Callable[[Exception], None]
) -> Callable[[StreamT[Any]], Awaitable[None]]:
    """Return the agent. ``fail`` is told what the worker cannot go on from; nothing more is taken after it."""

    async def take_facts(stream: StreamT[Any]) -> None:
        failed = False
        async for event in cast("Any", stream).noack().events():
            if failed:
                continue
            message = event.message
            headers = message.headers or ()
            try:
                await worker.take(
                    Delivered(
                        partition=message.partition,
                        offset=message.offset,
                        key=message.key,
                        value=message.value,
                        headers=tuple(headers.items() if isinstance(headers, dict) else headers),
                        written_at_ms=int((message.timestamp or 0) * 1000),
                        acknowledge=event.ack,
                    )
                )
            except Exception as error:
                log.exception("partition %d offset %d: the worker stops", message.partition, message.offset)
                failed = True
                fail(error)

    return take_facts
