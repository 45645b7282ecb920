"""Processes of the live path for tests: each is the installed `sickbay`, and each can be killed, paused and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from sickbay.cloudevents import FACTS_OFFSET, header
from sickbay.kafka import client_arguments

SICKBAY = Path(sys.executable).with_name("sickbay")
WAIT_S = 90.0


def environment(settings, **more):
    """Return the environment in which a process finds Kafka."""
    return os.environ | {
        "SICKBAY_KAFKA_BOOTSTRAP": settings.bootstrap,
        "SICKBAY_KAFKA_SECURITY": settings.security,
        "SICKBAY_KAFKA_PREFIX": settings.prefix,
        "SICKBAY_KAFKA_PARTITIONS": str(settings.partitions),
        "SICKBAY_KAFKA_REPLICATION": str(settings.replication),
        **more,
    }


def run(settings, *arguments, check=True, **more):
    """Run one command to its end and return it."""
    done = subprocess.run(
        [SICKBAY, *arguments],
        env=environment(settings, **more),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


class Process:
    """One long-running command, with its log in a file; used as a context manager it is killed at the end."""

    def __init__(self, settings, log_dir, name, *arguments, program=(SICKBAY,), **more):
        self._settings, self._arguments, self._more = settings, arguments, more
        self._program = program
        self._log = Path(log_dir) / f"{name}.log"
        self.name = name
        self.process = None
        self.starts = 0
        self._log_begins = 0

    def start(self, **more):
        assert self.process is None or self.process.poll() is not None, "it runs"
        with self._log.open("ab") as log:
            self._log_begins = self._log.stat().st_size
            self.process = subprocess.Popen(
                [*self._program, *self._arguments],
                env=environment(self._settings, **(self._more | more)),
                stdout=log,
                stderr=log,
            )
        self.starts += 1
        return self

    def start_with(self, *more):
        """Start once with more arguments."""
        arguments, self._arguments = self._arguments, (*self._arguments, *more)
        try:
            return self.start()
        finally:
            self._arguments = arguments

    def signal(self, number):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self):
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(WAIT_S)

    def stop(self):
        """SIGTERM, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    @property
    def log(self):
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    @property
    def log_since_start(self):
        """What it logged since it was started last."""
        data = self._log.read_bytes() if self._log.exists() else b""
        return data[self._log_begins :].decode("utf-8", "replace")

    @property
    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.signal(signal.SIGCONT)
        self.kill()


def eventually(question, what, wait_s=WAIT_S, processes=()):
    """Wait until a question is answered by something true, and return that; a process that ended meanwhile is told at once."""
    begun = time.monotonic()
    while time.monotonic() - begun < wait_s:
        answer = question()
        if answer:
            return answer
        for process in processes:
            assert process.is_running, f"{process.name} ended:\n{process.log[-4000:]}"
        time.sleep(0.1)
    logs = "\n".join(f"--- {process.name}\n{process.log[-3000:]}" for process in processes)
    raise AssertionError(f"{what} did not come about within {wait_s:.0f} s\n{logs}")


def produce(settings, topic, records):
    """Write (partition, message) records, in their order."""

    async def send():
        producer = AIOKafkaProducer(**client_arguments(settings, "test"), enable_idempotence=True)
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic, message.value, key=message.key, partition=partition, headers=message.headers
                )
                for partition, message in records
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(send())


def read_topic(settings, topic, *, partitions=None):
    """Return partition to its records, from the first to the end as it is now."""
    numbers = range(settings.partitions) if partitions is None else range(partitions)

    async def read():
        consumer = AIOKafkaConsumer(
            **client_arguments(settings, "test"),
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=8 << 20,
        )
        await consumer.start()
        try:
            tps = [TopicPartition(topic, number) for number in numbers]
            consumer.assign(tps)
            ends = await consumer.end_offsets(tps)
            starts = await consumer.beginning_offsets(tps)
            found = {number: [] for number in numbers}
            for tp in tps:
                consumer.seek(tp, starts[tp])
            while any([await consumer.position(tp) < ends[tp] for tp in tps]):
                for tp, records in (await consumer.getmany(timeout_ms=500, max_records=5_000)).items():
                    found[tp.partition] += [record for record in records if record.offset < ends[tp]]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


def answers_and_ends(settings):
    """Return partition to the position up to which its facts are answered, and partition to the end of its facts.

    In this order: what a worker forwards stands in the facts before its answer stands in the decisions, so no answer that is
    counted has led to a fact that is not.
    """
    answered = dict.fromkeys(range(settings.partitions), 0)
    for number, records in read_topic(settings, settings.topics.decisions).items():
        for record in records:
            answered[number] = max(answered[number], int(header(record.headers, FACTS_OFFSET)) + 1)
    facts = read_topic(settings, settings.topics.facts)
    return answered, {number: len(records) for number, records in facts.items()}
