"""Projectors for tests: processes as a user starts them, what they must come to, and waiting until they have."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import cli
from tiny_worker import expected_log, letters

from projections.engine import Store
from sickbay.errors import StoreError

WAIT_S = 60


def variables(settings):
    """Return what the environment of a process says of Kafka."""
    return {
        "SICKBAY_KAFKA_BOOTSTRAP": settings.bootstrap,
        "SICKBAY_KAFKA_PREFIX": settings.prefix,
        "SICKBAY_KAFKA_PARTITIONS": str(settings.partitions),
        "SICKBAY_KAFKA_REPLICATION": str(settings.replication),
    }


class Process:
    """One ``sickbay project``."""

    def __init__(self, settings, place, folder, *, name="", failpoint="", options=()):
        arguments = ["--log-format", "text", *options]
        if name:
            # known by name, a successor need not wait until the group has given up its predecessor
            arguments += ["--group-instance-id", name]
        extra = {"SICKBAY_FAILPOINT": failpoint} if failpoint else {}
        self.log = folder / f"project-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self._process = cli.start(
                "project", "--db", place, *arguments, env=variables(settings) | extra, stderr_to=log
            )
        self.pid = self._process.pid

    @property
    def told(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def runs(self):
        return self._process.poll() is None

    def send(self, how):
        os.kill(self.pid, how)

    def wait(self, timeout_s=WAIT_S):
        """Return the exit code, of a process that ends by itself or was asked to."""
        return self._process.wait(timeout_s)

    def end(self, how=signal.SIGTERM):
        """End it, and return its exit code."""
        if self.runs:
            self.send(how)
        return self.wait()

    def until_told(self, text):
        until(lambda: text in self.told or not self.runs, f"{text!r} in {self.log}")
        assert text in self.told, self.told

    def until_stopped(self):
        """Wait until it stopped itself."""

        def stopped():
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
            return stat.rpartition(")")[2].split()[0] == "T"

        until(stopped, f"{self.pid} stopped")


@contextmanager
def projector(settings, place, folder, **options):
    """Give out a process that is ended afterwards, whatever became of it."""
    process = Process(settings, place, folder, **options)
    try:
        yield process
    finally:
        if process.runs:
            process.end(signal.SIGKILL)


def until(holds, what, timeout_s=WAIT_S):
    """Wait until something holds."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)


def sources_of(place):
    """Return source -> next offset, of a store that may not be there yet."""
    try:
        with Store.open(place, read_only=True) as store:
            return {
                (source.topic, source.partition): offset for source, (_, offset) in store.sources().items()
            }
    except StoreError:
        return {}


def until_projected(place, records, *, parked=None, process=None):
    """Wait until every facts record, and every dead letter, is in the store."""
    wanted = {("facts", number): len(messages) for number, messages in records.items()}
    if parked is not None:
        wanted["parked", 0] = parked

    def projected():
        assert process is None or process.runs, process.told
        there = sources_of(place)
        return all(there.get(source, -1) >= offset for source, offset in wanted.items())

    until(projected, f"the store to hold {wanted}, it holds {sources_of(place)}")


def expected_digests(settings, records, folder):
    """Return the digests that the fold alone leads to, without Kafka."""
    log = expected_log(records)
    with Store.open(
        folder / f"expected-{time.monotonic_ns()}.db", create=True, partitions=settings.partitions
    ) as store:
        store.write(log)
        store.park(letters(settings, records))
        return store.digests()


def parked_rows(store):
    with store.reading() as connection:
        rows = connection.exec_driver_sql("SELECT place, reason, raw FROM parked ORDER BY place").all()
    return [(place, reason, bytes(raw)) for place, reason, raw in rows]
