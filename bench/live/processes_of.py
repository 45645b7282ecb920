"""Long-running processes of a run: the installed commands, as the tests start them, and what their topics tell of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from sickbay.cloudevents import FACTS_OFFSET, whole_header
from sickbay.kafka import client_arguments
from sickbay.settings import KafkaSettings

#: What a worker logs once it is at work.
READY: Final = "the worker takes records"
_POLL_MS: Final = 100


def worker_process(settings: KafkaSettings, folder: Path) -> Any:
    """Return ``sickbay work``, not started yet; a context manager that kills it at the end."""
    from live_processes import Process

    return Process(settings, folder, "work", "work", "--log-format", "text")


def projector_process(settings: KafkaSettings, folder: Path, database: str) -> Any:
    """Return ``sickbay project``, not started yet."""
    from live_processes import Process

    return Process(settings, folder, "project", "project", "--db", database, "--log-format", "text")


def wait_ready(worker: Any, times: int = 1) -> None:
    """Wait until a worker took records for the so-manieth time."""
    from live_processes import eventually

    eventually(lambda: worker.log.count(READY) >= times, "a worker at work", processes=[worker])


class Answers:
    """The decisions topic from now on: up to where each partition is answered, and when the broker had that answer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer = AIOKafkaConsumer(
            **client_arguments(settings, "bench-answers"), max_partition_fetch_bytes=8 << 20
        )
        #: Partition to the offset behind the last facts record that is answered.
        self.positions: dict[int, int] = dict.fromkeys(range(settings.partitions), 0)
        #: Broker's time of the first and of the last answer that was heard, milliseconds.
        self.first_ms = 0
        self.last_ms = 0

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        tps = [TopicPartition(self._settings.topics.decisions, number) for number in self.positions]
        self._consumer.assign(tps)
        for tp, end in (await self._consumer.end_offsets(tps)).items():
            self._consumer.seek(tp, end)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def until(self, targets: Mapping[int, int], limit_s: float, worker: Any) -> None:
        """Wait until everything before these offsets is answered. Raises SystemExit when the worker ends, or at the limit."""
        try:
            async with asyncio.timeout(limit_s):
                while any(self.positions[number] < end for number, end in targets.items()):
                    if not worker.is_running:
                        raise SystemExit(f"the worker ended: {worker.log[-4_000:]}")
                    found = await self._consumer.getmany(timeout_ms=_POLL_MS)
                    for tp, records in found.items():
                        for record in records:
                            self._hear(tp.partition, record)
        except TimeoutError:
            raise SystemExit(
                f"{targets} not answered within {limit_s:.0f} s: {self.positions}\n{worker.log[-2_000:]}"
            ) from None

    def _hear(self, number: int, record: Any) -> None:
        position = (whole_header(record.headers, FACTS_OFFSET) or 0) + 1
        if position > self.positions[number]:
            self.positions[number] = position
            self.last_ms = max(self.last_ms, record.timestamp)
            self.first_ms = self.first_ms or record.timestamp
