"""SQLite: errors in words that say where and what to do, and files that only their owner reads."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from log_scenarios import every_kind, storm
from sqlalchemy.exc import OperationalError

from projections import schema, sqlite
from projections.database import store_error
from projections.engine import Store
from sickbay.errors import StoreError

NOBODY = 65_534


@contextmanager
def unprivileged():
    """Give up root for a while, because root may write where nobody may."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared():
    """A directory below which an unprivileged user may look."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def written(path):
    with Store.open(path, create=True, partitions=4) as store:
        store.write(every_kind().records)
    return path


def test_a_new_store_is_readable_by_its_owner_only(tmp_path):
    """The file, its log and its shared memory have mode 0600."""
    with Store.open(tmp_path / "own.db", create=True) as store:
        store.write(every_kind(partitions=8).records)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {"own.db": 0o600, "own.db-wal": 0o600, "own.db-shm": 0o600} == modes


def test_connections_have_the_promised_settings(tmp_path):
    """WAL, foreign keys, a busy timeout, no trust in the schema."""
    expected = {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "busy_timeout": 30_000,
        "trusted_schema": 0,
        "recursive_triggers": 1,
    }
    with Store.open(tmp_path / "set.db", create=True) as store, store.reading() as connection:
        assert expected == {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in expected}


def test_a_missing_store_is_named(tmp_path):
    """Opening what is not there says what makes one, and makes none."""
    with pytest.raises(StoreError, match=r"none\.db: there is no store; `sickbay replay`"):
        Store.open(tmp_path / "none.db")
    assert [] == list(tmp_path.iterdir())


def test_a_missing_directory_is_named(tmp_path):
    """A store in a directory that does not exist is refused with the remedy."""
    with pytest.raises(StoreError, match="check that its directory exists"):
        Store.open(tmp_path / "no" / "where.db", create=True)


def test_an_unwritable_directory_is_named(shared):
    """Somebody who may not create the file is told so."""
    shared.chmod(0o555)
    with unprivileged(), pytest.raises(StoreError, match=r"Permission denied.*check that its directory"):
        Store.open(shared / "new.db", create=True)


def test_a_file_that_may_not_be_written_is_named(shared):
    """A read-only file opens, and refuses the first write with the remedy."""
    path = written(shared / "frozen.db")
    path.chmod(0o444)
    shared.chmod(0o777)
    log = storm(nodes=1, devices=1, rounds=1, partitions=4, chained=False).records
    with (
        unprivileged(),
        Store.open(path) as store,
        pytest.raises(StoreError, match="cannot be written; check the permissions"),
    ):
        store.write([record._replace(offset=record.offset + 1_000) for record in log])


def test_an_archived_store_can_be_read_where_nothing_may_be_written(shared):
    """A store on read-only media answers like the original."""
    path = written(shared / "archive.db")
    with Store.open(path) as store:
        expected = store.digests()
    path.chmod(0o444)
    shared.chmod(0o555)
    with unprivileged(), Store.open(path, read_only=True) as store:
        assert expected == store.digests()


def test_a_file_that_is_no_database_is_named(tmp_path):
    """A text file is not touched."""
    path = tmp_path / "notes.db"
    path.write_text("not a database, but long enough to be looked at\n" * 20)
    for options in ({"create": True}, {"read_only": True}, {}):
        with pytest.raises(StoreError, match=r"notes\.db is not a SQLite database; give another path"):
            Store.open(path, **options)
    assert path.read_text().startswith("not a database")


def test_a_database_of_somebody_else_is_left_alone(tmp_path):
    """A SQLite file with other tables is refused and keeps them."""
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE accounts (id INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match=r"other tables \(accounts\) and no Sickbay schema"):
        Store.open(path, create=True)


def test_another_schema_is_named_with_the_way_out(tmp_path):
    """A store of another revision, and an empty one, say `sickbay migrate`."""
    path = written(tmp_path / "old.db")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    connection.close()
    with pytest.raises(
        StoreError, match=rf"revision 0000, this build needs {schema.HEAD}; run `sickbay migrate`"
    ):
        Store.open(path, create=True)
    with pytest.raises(StoreError, match="which this build does not know"):
        schema.upgrade(path)
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="has no schema yet; run `sickbay migrate`"):
        Store.open(tmp_path / "empty.db")


def test_a_migrated_store_without_events_is_initialised_by_the_first_writer(tmp_path):
    """`sickbay migrate` makes the schema; a reader is told that nothing is in it, a writer fills it."""
    path = tmp_path / "migrated.db"
    assert None is schema.upgrade(path)
    with pytest.raises(StoreError, match="holds no events yet"):
        Store.open(path, read_only=True)
    with Store.open(path, partitions=2) as store:
        assert 2 == store.partitions


def test_a_full_disk_writes_nothing_and_says_so(tmp_path):
    """SQLITE_FULL in the middle of a batch: the batch before it is there, this one is not, and it can be repeated later."""
    log = storm(nodes=40, devices=8, rounds=4, partitions=4).records
    path = tmp_path / "full.db"
    with Store.open(path, create=True, partitions=4) as store:
        store.write(log[:200])
        before = store.digests()
        with store.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 20}")
        with pytest.raises(StoreError, match="is full; free disk space"):
            store.write(log[200:])
        assert before == store.digests()
        with store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        assert len(log) - 200 == store.write(log[200:]).rows


def test_a_locked_store_says_who_to_wait_for(tmp_path, monkeypatch):
    """A writer that waits longer than the timeout gives up with the remedy and has written nothing."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 50)
    path = written(tmp_path / "busy.db")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Store.open(path) as store, pytest.raises(StoreError, match="is locked by another process"):
        store.write([])
    holder.rollback()
    holder.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SQLITE_CORRUPT", "is damaged"),
        ("SQLITE_IOERR_WRITE", "check the disk"),
        ("SQLITE_PERM", "may not be accessed"),
        ("SQLITE_LOCKED_SHAREDCACHE", "locked by another connection"),
        ("SQLITE_TOOBIG", "park the event"),
        ("SQLITE_CONSTRAINT_NOTNULL", "two writers"),
        ("SQLITE_CANTOPEN_ISDIR", "cannot be opened"),
        ("SQLITE_ODD", "sickbay verify"),
    ],
)
def test_errors_that_cannot_be_caused_here_have_their_words(name, words):
    """Each error of the driver is named with the place and a remedy, also those that a test cannot cause."""
    cause = sqlite3.OperationalError("driver text")
    cause.sqlite_errorname = name
    text = str(store_error(OperationalError("SQL", {}, cause), "x.db"))
    assert text.startswith("x.db ")
    assert words in text
    assert "driver text" in text


@pytest.mark.parametrize("held_looks", [0, 3])
def test_a_new_file_that_another_process_prepares_is_looked_at_again(tmp_path, monkeypatch, held_looks):
    """The switch to WAL does not wait by itself; the store does, and goes on as soon as the file is free."""
    path = tmp_path / "contended.db"
    path.touch()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    looks = []

    def look_again(_seconds):
        looks.append(1)
        if len(looks) > held_looks:
            holder.rollback()

    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 400)
    monkeypatch.setattr(sqlite.time, "sleep", look_again)
    with Store.open(path, create=True) as store, store.reading() as connection:
        assert "wal" == connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    assert held_looks + 1 == len(looks)
    holder.close()


def test_a_new_file_that_stays_locked_is_given_up(tmp_path, monkeypatch):
    """The wait is bounded."""
    path = tmp_path / "held.db"
    path.touch()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 40)
    with pytest.raises(StoreError, match="is locked by another process"):
        Store.open(path, create=True)
    holder.rollback()
    holder.close()
