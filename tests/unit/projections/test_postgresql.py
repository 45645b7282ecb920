"""PostgreSQL: sessions as promised, turns among writers, commits in doubt, and errors in words that say what to do."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import psycopg
import pytest
import sqlalchemy as sa
from cutting_proxy import CuttingProxy
from log_builder import History
from log_scenarios import every_kind
from postgresql import server

from projections import database
from projections.database import ATTEMPTS_MAX
from projections.engine import Store, Written
from projections.records import ParkedItem
from projections.sources import Follow, Source
from projections.tables import event_log, parked
from sickbay.errors import StoreError
from sickbay.facts import Tick


@pytest.fixture
def place():
    """A database with the schema and no store in it."""
    url = server().migrated()
    yield url
    server().give_back(url)


@pytest.fixture
def quick(monkeypatch):
    """Pauses take no time."""
    monkeypatch.setattr(database.time, "sleep", lambda _seconds: None)


def ticks(count, *, chained=True, partition=0):
    log = History(4, chained)
    for number in range(count):
        log.fact(Tick(node="", partition=partition, observed_at_ms=1_000 * number))
    return log.records


def opened(place, **options):
    return Store.open(place, create=True, partitions=4, **options)


def settings(connection, *names):
    return [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]


# --- sessions ---


def test_sessions_have_the_promised_settings(place):
    """UTC, our schema and no other, a name, and a limit to every wait."""
    with opened(place) as store, store.reading() as connection:
        names = ("timezone", "search_path", "application_name", "lock_timeout", "statement_timeout")
        assert ["UTC", "sickbay", "sickbay", "30s", "10min"] == settings(connection, *names)
        assert ["10min"] == settings(connection, "idle_in_transaction_session_timeout")


def test_limits_and_names_that_the_url_gives_stand(place):
    """Who wants to wait shorter, or to be called otherwise, says so in the URL; our schema and UTC stay."""
    url = f"{place}&application_name=audit&options=-c%20lock_timeout%3D1s%20-c%20timezone%3DAsia%2FTokyo"
    with opened(url) as store, store.reading() as connection:
        names = ("timezone", "search_path", "application_name", "lock_timeout", "statement_timeout")
        assert ["UTC", "sickbay", "audit", "1s", "10min"] == settings(connection, *names)


def test_a_reading_transaction_is_one_snapshot_that_writes_nothing(place):
    """What others commit meanwhile does not show, and a statement that writes is refused."""
    with opened(place) as store, opened(place) as other:
        with store.reading() as connection:
            count = sa.select(sa.func.count()).select_from(event_log)
            assert 0 == connection.execute(count).scalar_one()
            other.write(ticks(3))
            assert 0 == connection.execute(count).scalar_one()
            assert ["repeatable read", "on"] == settings(
                connection, "transaction_isolation", "transaction_read_only"
            )
        with pytest.raises(StoreError, match="cannot be written"), store.reading() as connection:
            connection.execute(sa.delete(parked))
        assert 3 == len(list(store.read(0)))


def test_a_public_table_of_the_same_name_is_never_ours(place):
    """The search path is our schema only: what somebody put into another one is not found."""
    server().execute(
        "CREATE TABLE public.event_log AS SELECT 1 AS log_offset", database=sa.make_url(place).database
    )
    with opened(place) as store:
        store.write(ticks(2))
        assert 2 == len(list(store.read(0)))
    server().execute("DROP TABLE public.event_log", database=sa.make_url(place).database)


# --- turns ---


def _at_once(*works):
    """Run each work in a thread; return what each came to."""
    gate, results = threading.Barrier(len(works)), [None] * len(works)

    def run(number, work):
        gate.wait(30)
        try:
            results[number] = work()
        except StoreError as error:
            results[number] = str(error)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@contextmanager
def held(place, statement):
    """Hold the locks of a statement in a session of somebody else."""
    with psycopg.connect(place, options="-c search_path=sickbay") as connection:
        connection.execute(statement)
        yield connection
        connection.rollback()


@pytest.mark.parametrize("first", [0, 5])
def test_two_writers_of_one_partition_take_turns(place, first):
    """The same batch from two writers at once is there once; of two different ones, one is refused, as on SQLite."""
    log = ticks(40)
    with opened(place) as one, opened(place) as two:
        one.write(log[:first])
        results = _at_once(lambda: one.write(log), lambda: two.write(log))
        assert sorted([Written(0, 40, 0), Written(40 - first, first, 0)]) == sorted(results)
        other = ticks(41, chained=True)
        other[40] = other[40]._replace(chain=b"\1" * 32)
        results = _at_once(lambda: one.write(ticks(41)[40:]), lambda: two.write(other[40:]))
        # the false one is refused when it comes first, and stands before the checkpoint when it comes second
        assert Written(1, 0, 0) == results[0]
        assert results[1] == Written(0, 1, 0) or "only one writer may own a partition" in results[1]
        assert ticks(41)[40].chain == list(one.read(0))[40].chain


def test_writers_of_other_partitions_do_not_wait(place):
    """A writer that holds partition 0 is in nobody's way but its own."""
    with opened(f"{place}&options=-c%20lock_timeout%3D100ms") as store:
        store.write([*ticks(1), *ticks(1, partition=1)])
        with held(place, "SELECT 1 FROM checkpoint WHERE partition_number = 0 FOR UPDATE"):
            assert 1 == store.write(ticks(2, partition=1)).rows
            with pytest.raises(
                StoreError, match="is locked by another process; stop that process or try again"
            ):
                store.write(ticks(2))
        assert 1 == store.write(ticks(2)).rows


def test_nobody_writes_while_read_models_are_switched(place):
    """A transaction that must be alone waits for writers, and writers wait for it."""
    with opened(f"{place}&options=-c%20lock_timeout%3D100ms") as store, opened(place) as other:
        store.write(ticks(1))
        with database.writing(other.engine, other.place), pytest.raises(StoreError, match="is locked"):
            store.write(ticks(1, partition=3))
        with held(place, "SELECT 1 FROM checkpoint FOR UPDATE"), pytest.raises(StoreError, match="is locked"):
            store.end_source()
        assert not store.source_ended


def test_parked_items_are_numbered_without_repeats(place):
    """Writers of different partitions that park at once give each item a number of its own."""
    stores = [opened(place) for _ in range(4)]
    works = [
        lambda store=store, number=number: [
            store.write([], park=[ParkedItem(f"file:{number}-{step}", "broken", b"x")]) for step in range(10)
        ]
        for number, store in enumerate(stores)
    ]
    _at_once(*works)
    with stores[0].reading() as connection:
        assert list(range(1, 41)) == sorted(connection.execute(sa.select(parked.c.seq)).scalars())
    for store in stores:
        store.close()


class _Failing:
    """Makes the first COPY of some transactions fail with an error that PostgreSQL has for it."""

    def __init__(self, store, times, error):
        self.left, self.error = times, error
        sa.event.listen(store.engine, "before_cursor_execute", self.statement)

    def statement(self, connection, _cursor, statement, *_rest):
        if statement.startswith("COPY event_log") and self.left:
            self.left -= 1
            connection.exec_driver_sql(f"DO $$ BEGIN RAISE SQLSTATE '{self.error}'; END $$")


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_batch_that_the_server_undid_is_tried_again(place, quick, state):
    """A failed serialization and a deadlock cost nothing but time, four times; the batch is then there once."""
    with opened(place) as store:
        failing = _Failing(store, ATTEMPTS_MAX - 1, state)
        assert Written(3, 0, 0) == store.write(ticks(3))
        assert 0 == failing.left


def test_a_batch_that_the_server_keeps_undoing_is_given_up(place, quick):
    """After five times the store says so, and nothing of the batch is there."""
    with opened(place) as store:
        failing = _Failing(store, 100, "40001")
        with pytest.raises(StoreError, match="other writers were in its way; run again"):
            store.write(ticks(3))
        assert 100 - ATTEMPTS_MAX == failing.left
        assert {} == store.positions()


def test_a_real_deadlock_ends_with_both_batches_written(place):
    """Two transactions that lock two partitions in opposite orders: one is undone, tried again, and written."""
    with opened(place) as store:
        store.write([*ticks(1), *ticks(1, partition=1)])
        reached, go_on = threading.Event(), threading.Event()

        def stranger():
            lock = "SELECT 1 FROM checkpoint WHERE partition_number = {} FOR UPDATE"
            # the stranger never gives way: it is not the one that looks for deadlocks
            with held(place, "SET deadlock_timeout = '60s'") as connection:
                connection.execute(lock.format(1))
                reached.set()
                go_on.wait(30)
                connection.execute(lock.format(0))

        thread = threading.Thread(target=stranger)
        thread.start()
        reached.wait(30)
        go_on.set()
        assert 2 == store.write([*ticks(2)[1:], *ticks(2, partition=1)[1:]]).rows
        thread.join(60)


# --- commits in doubt ---


@pytest.fixture
def proxied(place, tmp_path_factory):
    """A proxy before the server, and the place as seen through it."""
    folder = tmp_path_factory.mktemp("p")
    proxy = CuttingProxy(place, folder)
    yield proxy, proxy.url
    proxy.close()


@pytest.mark.parametrize("delivers", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(proxied, quick, delivers):
    """Whether the server got the COMMIT or not, the batch is there once and the writer is told so."""
    proxy, place = proxied
    with opened(place) as store:
        store.write(ticks(2))
        proxy.delivers, proxy.cuts = delivers, 1
        assert Written(rows=3, skipped=2, repeats=0) == store.write(ticks(5))
        assert 0 == proxy.cuts
        assert [record.data for record in ticks(5)] == [record.data for record in store.read(0)]
        proxy.cuts = 1
        store.park([ParkedItem("file:1", "broken", b"x")])
        store.park([ParkedItem("file:2", "broken", b"x")])
        with store.reading() as connection:
            assert [1, 2] == sorted(connection.execute(sa.select(parked.c.seq)).scalars())


@pytest.mark.parametrize("delivers", [True, False])
def test_positions_of_topics_are_looked_up_too(proxied, quick, delivers):
    """A batch of a projector that left no event is there once, whatever became of the answer, and its writer is not fenced."""
    proxy, place = proxied
    with opened(place) as store:
        source = Source("facts", 0)
        store.follow({"facts": "cluster/topic"}, [source])
        for before in (0, 5):
            proxy.delivers, proxy.cuts = delivers, 1
            records = ticks(before // 5)
            assert before // 5 == store.write(records, follows=[Follow("facts", 0, before, before + 5)]).rows
            assert 0 == proxy.cuts
            assert ("cluster/topic", before + 5) == store.sources()[source]


def test_commits_that_never_come_through_are_given_up(proxied, quick):
    """A connection that is lost at every commit is named, and nothing of the batch is there."""
    proxy, place = proxied
    with opened(place) as store:
        proxy.delivers, proxy.cuts = False, ATTEMPTS_MAX
        with pytest.raises(StoreError, match=f"lost at every one of {ATTEMPTS_MAX} commits"):
            store.write(ticks(5))
        assert 0 == proxy.cuts
        assert {} == store.positions()
        assert Written(5, 0, 0) == store.write(ticks(5))


def test_a_change_that_is_no_batch_says_that_it_is_in_doubt(proxied):
    """What is not looked up says what to do: run again."""
    proxy, place = proxied
    with opened(place) as store:
        proxy.cuts = 1
        with pytest.raises(StoreError, match=r"was lost while a batch was committed.*run again"):
            store.end_source()
        store.end_source()
        assert store.source_ended


def test_a_connection_that_dies_between_batches_is_replaced(place):
    """A server that closed our sessions is found again by the next call but one at most."""
    with opened(place) as store:
        store.write(ticks(1))
        server().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE application_name = 'sickbay' AND datname = '{sa.make_url(place).database}'"
        )
        with pytest.raises(StoreError, match=r"shutting down or starting; run again|cannot be reached"):
            store.write(ticks(2))
        assert 1 == store.write(ticks(2)).rows


def test_a_server_that_stays_away_leaves_the_commit_in_doubt(proxied, quick):
    """Nobody says that the batch is there or that it is not; run again, it is there once."""
    proxy, place = proxied
    with opened(place) as store:
        proxy.delivers, proxy.cuts = True, 1
        proxy.refuses_after_cut = True
        with pytest.raises(
            StoreError, match=r"whether it is there is not known; run again when the server is up"
        ):
            store.write(ticks(5))
        proxy.refuses_after_cut = False
        assert Written(rows=0, skipped=5, repeats=0) == store.write(ticks(5))


# --- beside SQLite ---


def test_rows_are_those_of_sqlite(place, tmp_path):
    """The same log in both, cut differently, gives equal digests of every table (S17)."""
    log = every_kind().records
    with opened(place) as ours, opened(tmp_path / "same.db") as theirs:
        for start in range(0, len(log), 5):
            ours.write(log[start : start + 5])
        theirs.write(log)
        assert theirs.digests() == ours.digests()


def test_a_write_does_not_wait_for_readers(place):
    """A reader in the middle of its snapshot holds nobody up."""
    with opened(f"{place}&options=-c%20lock_timeout%3D100ms") as store, opened(place) as auditor:
        store.write(ticks(2))
        with auditor.reading() as connection:
            assert 2 == len(connection.execute(sa.select(event_log.c.log_offset)).all())
            began = time.monotonic()
            assert 1 == store.write(ticks(3)).rows
            assert time.monotonic() - began < 10
