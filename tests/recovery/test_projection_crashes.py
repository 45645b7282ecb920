"""Crashes between any two statements: a write is all or nothing, a rebuild goes on where it was, and nothing is ever half seen."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import sqlalchemy as sa
from databases import DATABASES, places
from log_scenarios import every_kind, storm

from projections.engine import CUSTODY, Store
from projections.log import live_generation
from projections.rebuild import rebuild
from projections.tables import CUSTODY_TABLES, episode, read_model, rebuild_checkpoint
from sickbay.errors import StoreError, VerifyError

STATEMENTS_MAX = 500
#: A rebuild is killed before every statement, or on a server, where each takes longer, before every seventh.
STEP = {"sqlite": 1, "postgresql": 7}


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


@pytest.fixture(params=DATABASES)
def place(request, tmp_path):
    """A function that names a database, on each kind of server and file."""
    with places(request.param, tmp_path) as place:
        yield place


@pytest.fixture
def clean(place, records):
    """A store that was written without a crash."""
    with Store.open(place("clean"), create=True, partitions=4) as store:
        store.write(records)
        yield store


def test_a_write_that_crashes_anywhere_leaves_all_or_nothing(place, records, clean):
    """Before every statement, and before the commit: nothing of the batch is there, and the next delivery gives a clean run."""
    path = place("crashing")
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
    assert 15 < crash.seen < STATEMENTS_MAX
    with Store.open(path, read_only=True) as store:
        assert clean.digests() == store.digests()


def _write_and_die(path, nth):
    with Store.open(path) as store:
        CrashAt(store, nth, hard=True)
        for start in range(0, 48, 6):
            store.write(every_kind().records[start : start + 6])


def test_a_process_that_dies_is_replaced_by_one_that_reads_the_positions(place, records, clean):
    """A killed writer's successor delivers everything again and arrives at the rows of a clean run."""
    path = place("killed")
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


def test_a_rebuild_that_is_killed_anywhere_goes_on(place, records, clean):
    """Killed before one statement after another and called again, a rebuild ends with equal rows, one generation, and no trace."""
    path = place("rebuilt")
    with Store.open(path, create=True, partitions=4) as store:
        store.write(records)
        step = STEP[store.engine.dialect.name]
    for nth in range(1, STATEMENTS_MAX, step):
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


def test_a_killed_rebuild_does_not_start_again(place):
    """What one run projected, the next does not project again."""
    with Store.open(place("resumed"), create=True, partitions=2) as store:
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


def test_a_live_writer_goes_on_beside_a_rebuild(place, records, clean):
    """Events written while the next generation is filled are in it when it is switched to."""
    with Store.open(place("live"), create=True, partitions=4) as store:
        store.write(records[:25])
        transactions = 0

        def write_more(*_args):
            nonlocal transactions
            transactions += 1
            if transactions == 20:
                with Store.open(place("live")) as other:
                    other.write(records)

        # A connection is checked out before each transaction of the rebuild: it holds no lock then.
        sa.event.listen(store.engine, "checkout", write_more)
        result = rebuild(store, CUSTODY, batch_events=1)
        assert [] == result.differing
        assert 20 < transactions
        assert clean.digests() == store.digests()


def test_rows_changed_by_hand_are_found_and_only_replaced_on_demand(place, records, clean):
    """A rebuild that differs names the table and leaves the live rows; accepting the difference switches to what the log says."""
    with Store.open(place("tampered"), create=True, partitions=4) as store:
        store.write(records)
        with store.engine.begin() as connection:
            connection.execute(sa.update(episode).values(outcome="returned"))
        tampered = store.digests()
        with pytest.raises(VerifyError, match="rebuilt rows of episode differ"):
            rebuild(store, CUSTODY)
        assert tampered == store.digests()
        assert ["episode"] == rebuild(store, CUSTODY, accept_difference=True).differing
        assert clean.digests() == store.digests()


def test_a_rebuild_of_read_models_that_are_not_there_says_so(place):
    """A database that has no row for the projection is named, with the remedy."""
    with Store.open(place("empty"), create=True, partitions=4) as store:
        with store.engine.begin() as connection:
            connection.execute(sa.delete(read_model))
        with pytest.raises(StoreError, match="open it once for writing"):
            rebuild(store, CUSTODY)
