"""Crashes between any two statements: a write is all or nothing, a rebuild goes on where it was, and nothing is ever half seen."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import sqlalchemy as sa
from log_scenarios import every_kind, storm

from projections.engine import CUSTODY, Store
from projections.log import live_generation
from projections.rebuild import rebuild
from projections.tables import CUSTODY_TABLES, episode, read_model, rebuild_checkpoint
from sickbay.errors import StoreError, VerifyError

STATEMENTS_MAX = 500


class Crash(BaseException):
    """What no code of ours catches."""


class CrashAt:
    """Raises, or ends the process, before the ``nth`` statement of a store."""

    def __init__(self, store, nth, *, hard=False):
        self.seen, self.nth, self.hard = 0, nth, hard
        sa.event.listen(store.engine, "before_cursor_execute", self.statement)
        sa.event.listen(store.engine, "commit", self.statement)

    def statement(self, *_args):
        self.seen += 1
        if self.seen == self.nth:
            if self.hard:
                os._exit(9)
            raise Crash


@pytest.fixture
def records():
    return every_kind().records


@pytest.fixture
def clean(tmp_path, records):
    """A store that was written without a crash."""
    with Store.open(tmp_path / "clean.db", create=True, partitions=4) as store:
        store.write(records)
        yield store


def test_a_write_that_crashes_anywhere_leaves_all_or_nothing(tmp_path, records, clean):
    """Before every statement, and before the commit: nothing of the batch is there, and the next delivery gives a clean run."""
    path = tmp_path / "crashing.db"
    with Store.open(path, create=True, partitions=4) as store:
        store.write(records[:20])
        before = store.digests()
    for nth in range(1, STATEMENTS_MAX):
        with Store.open(path) as store:
            crash = CrashAt(store, nth)
            try:
                store.write(records)
            except Crash:
                pass
            else:
                break
        with Store.open(path, read_only=True) as store:
            assert before == store.digests(), f"half a batch after statement {nth}"
    assert 20 < crash.seen < STATEMENTS_MAX
    with Store.open(path, read_only=True) as store:
        assert clean.digests() == store.digests()


def _write_and_die(path, nth):
    with Store.open(path) as store:
        CrashAt(store, nth, hard=True)
        for start in range(0, 48, 6):
            store.write(every_kind().records[start : start + 6])


def test_a_process_that_dies_is_replaced_by_one_that_reads_the_positions(tmp_path, records, clean):
    """A killed writer's successor delivers everything again and arrives at the rows of a clean run."""
    path = tmp_path / "killed.db"
    Store.open(path, create=True, partitions=4).close()
    context = multiprocessing.get_context("fork")
    for nth in (9, 31):
        worker = context.Process(target=_write_and_die, args=(path, nth))
        worker.start()
        worker.join(60)
        assert 9 == worker.exitcode
    with Store.open(path) as store:
        assert 0 < store.write(records).rows
        assert clean.digests() == store.digests()


def test_a_rebuild_that_is_killed_anywhere_goes_on(tmp_path, records, clean):
    """Killed before every statement in turn and called again, a rebuild ends with equal rows, one generation, and no trace."""
    path = tmp_path / "rebuilt.db"
    with Store.open(path, create=True, partitions=4) as store:
        store.write(records)
    for nth in range(1, STATEMENTS_MAX):
        with Store.open(path) as store:
            crash = CrashAt(store, nth)
            try:
                rebuild(store, CUSTODY, batch_events=7)
            except Crash:
                pass
            else:
                break
        with Store.open(path, read_only=True) as store:
            assert clean.digests() == store.digests(), f"readers saw a difference after statement {nth}"
    assert 20 < crash.seen < STATEMENTS_MAX
    with Store.open(path, read_only=True) as store, store.reading() as connection:
        assert 1 < live_generation(connection, CUSTODY.name)
        assert (
            0 == connection.execute(sa.select(sa.func.count()).select_from(rebuild_checkpoint)).scalar_one()
        )
        for table in CUSTODY_TABLES:
            generations = connection.execute(sa.select(table.c.generation).distinct()).scalars().all()
            assert [live_generation(connection, CUSTODY.name)] == generations, table.name


def test_a_killed_rebuild_does_not_start_again(tmp_path):
    """What one run projected, the next does not project again."""
    with Store.open(tmp_path / "resumed.db", create=True, partitions=2) as store:
        store.write(storm(nodes=4, devices=2, rounds=12, partitions=2).records)
        whole = CrashAt(store, 10**9)
        rebuild(store, CUSTODY, batch_events=1)
        sa.event.remove(store.engine, "before_cursor_execute", whole.statement)
        half = CrashAt(store, whole.seen // 2)
        with pytest.raises(Crash):
            rebuild(store, CUSTODY, batch_events=1)
        rest = CrashAt(store, 10**9)
        rebuild(store, CUSTODY, batch_events=1)
        assert half.seen < whole.seen
        assert rest.seen < whole.seen * 3 // 4


def test_a_live_writer_goes_on_beside_a_rebuild(tmp_path, records, clean):
    """Events written while the next generation is filled are in it when it is switched to."""
    with Store.open(tmp_path / "live.db", create=True, partitions=4) as store:
        store.write(records[:25])
        transactions = 0

        def write_more(*_args):
            nonlocal transactions
            transactions += 1
            if transactions == 20:
                with Store.open(tmp_path / "live.db") as other:
                    other.write(records)

        # A connection is checked out before each transaction of the rebuild: it holds no lock then.
        sa.event.listen(store.engine, "checkout", write_more)
        result = rebuild(store, CUSTODY, batch_events=1)
        assert [] == result.differing
        assert 20 < transactions
        assert clean.digests() == store.digests()


def test_rows_changed_by_hand_are_found_and_only_replaced_on_demand(tmp_path, records, clean):
    """A rebuild that differs names the table and leaves the live rows; accepting the difference switches to what the log says."""
    with Store.open(tmp_path / "tampered.db", create=True, partitions=4) as store:
        store.write(records)
        with store.engine.begin() as connection:
            connection.execute(sa.update(episode).values(outcome="returned"))
        tampered = store.digests()
        with pytest.raises(VerifyError, match="rebuilt rows of episode differ"):
            rebuild(store, CUSTODY)
        assert tampered == store.digests()
        assert ["episode"] == rebuild(store, CUSTODY, accept_difference=True).differing
        assert clean.digests() == store.digests()


def test_a_rebuild_of_read_models_that_are_not_there_says_so(tmp_path):
    """A database that has no row for the projection is named, with the remedy."""
    with Store.open(tmp_path / "empty.db", create=True, partitions=4) as store:
        with store.engine.begin() as connection:
            connection.execute(sa.delete(read_model))
        with pytest.raises(StoreError, match="open it once for writing"):
            rebuild(store, CUSTODY)
