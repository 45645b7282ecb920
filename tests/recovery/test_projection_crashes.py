"""Crashes between any two statements: a write is all or nothing, a rebuild goes on where it was, and nothing is ever half seen."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import sqlalchemy as sa
from databases import DATABASES, places
from ledger_scenarios import side_entry, tell
from log_builder import History, posted, reversed_at
from log_scenarios import every_kind, storm

from projections.engine import CUSTODY, LEDGER, Store
from projections.ledger_tables import ledger_entry, ledger_line
from projections.log import live_generation
from projections.rebuild import rebuild
from projections.tables import episode, read_model, rebuild_checkpoint
from sickbay.errors import StoreError, VerifyError

PROJECTIONS = {"custody": CUSTODY, "ledger": LEDGER}
#: Statements of a write that show that the rows of each projection were on their way.
WRITES = (
    "event_log",
    "transition",
    "ledger_line",
    "ledger_entry",
    "ledger_hold",
    "ledger_drift",
    "checkpoint",
)
STATEMENTS_MAX = 500
#: A rebuild is killed before every statement, or on a server, where each takes longer, before every seventh.
STEP = {"sqlite": 1, "postgresql": 7}


class Crash(BaseException):
    """What no code of ours catches."""


class CrashAt:
    """Raises, or ends the process, before the ``nth`` statement of a store."""

    def __init__(self, store, nth, *, hard=False):
        self.seen, self.nth, self.hard, self.stopped = 0, nth, hard, ""
        sa.event.listen(store.engine, "before_cursor_execute", self.statement)
        sa.event.listen(store.engine, "commit", self.statement)

    def statement(self, *args):
        self.seen += 1
        if self.seen == self.nth:
            self.stopped = args[2] if len(args) > 2 else "COMMIT"
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


@pytest.fixture(params=sorted(PROJECTIONS))
def projection(request):
    """Each set of read models."""
    return PROJECTIONS[request.param]


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
    stopped = []
    for nth in range(1, STATEMENTS_MAX):
        with Store.open(path) as store:
            crash = CrashAt(store, nth)
            try:
                store.write(records)
            except Crash:
                stopped.append(crash.stopped)
            else:
                break
        with Store.open(path, read_only=True) as store:
            assert before == store.digests(), f"half a batch after statement {nth}"
    assert 15 < crash.seen < STATEMENTS_MAX
    writes = " ".join(told for told in stopped if told.startswith(("INSERT", "COPY")))
    assert [] == [table for table in WRITES if table not in writes]
    assert "COMMIT" == stopped[-1]
    with Store.open(path, read_only=True) as store:
        assert clean.digests() == store.digests()


def _write_and_die(path, nth):
    with Store.open(path) as store:
        CrashAt(store, nth, hard=True)
        for start in range(0, len(every_kind().records), 6):
            store.write(every_kind().records[start : start + 6])


def test_a_process_that_dies_is_replaced_by_one_that_reads_the_positions(place, records, clean):
    """A killed writer's successor delivers everything again and arrives at the rows of a clean run."""
    path = place("killed")
    Store.open(path, create=True, partitions=4).close()
    context = multiprocessing.get_context("fork")
    for nth in (9, 31, 60):
        worker = context.Process(target=_write_and_die, args=(path, nth))
        worker.start()
        worker.join(60)
        assert 9 == worker.exitcode
    with Store.open(path) as store:
        assert 0 < store.write(records).rows
        assert clean.digests() == store.digests()


def test_a_rebuild_that_is_killed_anywhere_goes_on(place, records, clean, projection):
    """Killed before one statement after another and called again, a rebuild ends with equal rows, one generation, and no trace."""
    path = place("rebuilt")
    with Store.open(path, create=True, partitions=4) as store:
        store.write(records)
        step = STEP[store.engine.dialect.name]
    for nth in range(1, STATEMENTS_MAX, step):
        with Store.open(path) as store:
            crash = CrashAt(store, nth)
            try:
                rebuild(store, projection, batch_events=7)
            except Crash:
                pass
            else:
                break
        with Store.open(path, read_only=True) as store:
            assert clean.digests() == store.digests(), f"readers saw a difference after statement {nth}"
    assert 20 < crash.seen < STATEMENTS_MAX
    with Store.open(path, read_only=True) as store, store.reading() as connection:
        assert 1 < live_generation(connection, projection.name)
        assert (
            0 == connection.execute(sa.select(sa.func.count()).select_from(rebuild_checkpoint)).scalar_one()
        )
        for table in projection.tables:
            generations = connection.execute(sa.select(table.c.generation).distinct()).scalars().all()
            assert [live_generation(connection, projection.name)] == generations, table.name


def coming_and_going(pods):
    """A log in which one Pod after the other is entered and gone, on two nodes."""
    log = History(2)
    for number in range(pods):
        node, entered = f"node-{number % 2}", side_entry(60_000 * number)
        tell(log, node, 60_000 * number, posted(node, entered))
        tell(log, node, 60_000 * (pods + number), reversed_at(node, 60_000 * (pods + number), entered))
    return log


def test_a_killed_rebuild_does_not_start_again(place, projection):
    """What one run projected, the next does not project again."""
    log = coming_and_going(30) if projection is LEDGER else storm(nodes=4, devices=2, rounds=12, partitions=2)
    with Store.open(place("resumed"), create=True, partitions=2) as store:
        store.write(log.records)
        whole = CrashAt(store, 10**9)
        rebuild(store, projection, batch_events=1)
        sa.event.remove(store.engine, "before_cursor_execute", whole.statement)
        half = CrashAt(store, whole.seen // 2)
        with pytest.raises(Crash):
            rebuild(store, projection, batch_events=1)
        rest = CrashAt(store, 10**9)
        rebuild(store, projection, batch_events=1)
        # it went on counting through the rest
        assert half.seen - rest.seen < whole.seen
        assert rest.seen < whole.seen * 3 // 4


#: How much of the log is there before a rebuild begins: some of each projection, and not all of it.
BEFORE = {"custody": 25, "ledger": 80}


def test_a_live_writer_goes_on_beside_a_rebuild(place, records, clean, projection):
    """Events written while the next generation is filled are in it when it is switched to."""
    kinds = [record.envelope.kind in projection.wanted for record in records]
    assert 0 < sum(kinds[: BEFORE[projection.name]]) < sum(kinds)
    with Store.open(place("live"), create=True, partitions=4) as store:
        store.write(records[: BEFORE[projection.name]])
        transactions = 0

        def write_more(*_args):
            nonlocal transactions
            transactions += 1
            if transactions == 20:
                with Store.open(place("live")) as other:
                    other.write(records)

        # A connection is checked out before each transaction of the rebuild: it holds no lock then.
        sa.event.listen(store.engine, "checkout", write_more)
        result = rebuild(store, projection, batch_events=1)
        assert [] == result.differing
        assert 20 < transactions
        assert clean.digests() == store.digests()


@pytest.mark.parametrize(
    ("projection", "column", "value"),
    [
        (CUSTODY, episode.c.outcome, "returned"),
        (LEDGER, ledger_line.c.amount_units, 7),
        (LEDGER, ledger_entry.c.state, "reversed"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_rows_changed_by_hand_are_found_and_only_replaced_on_demand(
    place, records, clean, projection, column, value
):
    """A rebuild that differs names the table and leaves the live rows; accepting the difference switches to what the log says."""
    with Store.open(place("tampered"), create=True, partitions=4) as store:
        store.write(records)
        with store.engine.begin() as connection:
            connection.execute(sa.update(column.table).values({column.name: value}))
        tampered = store.digests()
        with pytest.raises(VerifyError, match=f"rebuilt rows of {column.table.name} differ"):
            rebuild(store, projection)
        assert tampered == store.digests()
        assert [column.table.name] == rebuild(store, projection, accept_difference=True).differing
        assert clean.digests() == store.digests()


def test_a_rebuild_of_read_models_that_are_not_there_says_so(place, projection):
    """A database that has no row for the projection is named, with the remedy."""
    with Store.open(place("empty"), create=True, partitions=4) as store:
        with store.engine.begin() as connection:
            connection.execute(sa.delete(read_model))
        with pytest.raises(StoreError, match="open it once for writing"):
            rebuild(store, projection)
