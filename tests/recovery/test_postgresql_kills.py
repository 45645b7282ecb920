"""PostgreSQL: writers that are killed in the middle of a batch, and a server that stops under them. Rows and positions move together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import pytest
import sqlalchemy as sa
from log_scenarios import every_kind, storm
from postgresql import Cluster, plain, server

from projections import schema
from projections.engine import Store
from projections.verify import verify_log
from sickbay.errors import StoreError

BATCH = 25


def proven(store):
    """Return partition -> number of events, having walked the whole chain up to each position."""
    with store.reading() as connection:
        return verify_log(connection)


def batches(log, partition):
    records = [record for record in log if record.partition == partition]
    return [records[start : start + BATCH] for start in range(0, len(records), BATCH)]


def _write_until_statement(place, log, nth, told):
    seen = 0

    def statement(*_args):
        nonlocal seen
        seen += 1
        if seen == nth:
            told.send(nth)
            threading.Event().wait(60)

    with Store.open(place) as store:
        sa.event.listen(store.engine, "before_cursor_execute", statement)
        for start in range(0, len(log), 6):
            store.write(log[start : start + 6])


def test_a_writer_that_is_killed_in_a_batch_leaves_nothing_of_it_and_holds_nobody_up(tmp_path):
    """SIGKILL between two statements: the server undoes the batch at once, and a successor ends as a clean run does."""
    log, place = every_kind().records, server().migrated()
    with Store.open(tmp_path / "clean.db", create=True, partitions=4) as clean:
        clean.write(log)
        expected = clean.digests()
    Store.open(place, create=True, partitions=4).close()
    context = multiprocessing.get_context("fork")
    for nth in (3, 8, 21, 40):
        ours, theirs = context.Pipe()
        writer = context.Process(target=_write_until_statement, args=(place, log, nth, theirs))
        writer.start()
        assert ours.poll(60)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(60)
        with Store.open(place) as store:
            counts = proven(store)
            assert all(count == len(list(store.read(number))) for number, count in counts.items())
    with Store.open(place) as store:
        began = time.monotonic()
        store.write(log)
        assert time.monotonic() - began < 20
        assert expected == store.digests()
    server().give_back(place)


class Writer(threading.Thread):
    """Writes one partition, batch by batch, and goes on after every error, as a process that is started again would."""

    def __init__(self, place, log, partition):
        super().__init__()
        self.place, self.batches = place, batches(log, partition)
        self.acknowledged, self.errors = 0, 0
        self.partition = partition

    def run(self):
        end = time.monotonic() + 90
        while self.acknowledged < len(self.batches) and time.monotonic() < end:
            try:
                with Store.open(self.place) as store:
                    for batch in self.batches[self.acknowledged :]:
                        store.write(batch)
                        self.acknowledged += 1
                        time.sleep(0.005)
            except StoreError:
                self.errors += 1
                time.sleep(0.05)


@pytest.mark.slow
def test_a_server_that_stops_at_once_loses_no_batch_that_it_acknowledged(tmp_path):
    """Stopped as by a crash, five times under four writers: what was acknowledged is there, and rows agree with positions."""
    log = storm(nodes=60, devices=4, rounds=10, partitions=4).records
    cluster = Cluster()
    try:
        place = plain(cluster.url())
        schema.upgrade(place)
        with Store.open(tmp_path / "clean.db", create=True, partitions=4) as clean:
            clean.write(log)
            expected = clean.digests()
        Store.open(place, create=True, partitions=4).close()
        writers = [Writer(place, log, partition) for partition in range(4)]
        for writer in writers:
            writer.start()
        for _ in range(5):
            time.sleep(0.3)
            before = {writer.partition: writer.acknowledged for writer in writers}
            cluster.stop(signal.SIGQUIT)
            cluster.start()
            with Store.open(place) as store:
                counts = proven(store)
                for writer in writers:
                    written = sum(len(batch) for batch in writer.batches[: before[writer.partition]])
                    assert counts.get(writer.partition, 0) >= written
        for writer in writers:
            writer.join(100)
        assert sum(writer.errors for writer in writers) > 0
        with Store.open(place) as store:
            assert expected == store.digests()
            assert len(log) == sum(proven(store).values())
    finally:
        cluster.remove()
