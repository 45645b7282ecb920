"""SQLite: one file, one writer at a time, any number of readers.

A writing transaction begins IMMEDIATE, so that two processes take turns instead of failing halfway; a reading one sees one
snapshot (WAL).
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from sickbay.errors import StoreError

#: How long a writer waits for another one. Writes are batches of milliseconds; a switch of read models takes seconds.
BUSY_TIMEOUT_MS: Final = 30_000

#: How long to wait before looking again at a new file that another process is preparing, which takes milliseconds.
_WAL_RETRY_MS: Final = 20

#: Execution option of a connection whose transactions write.
_WRITES: Final = "sickbay_writes"

#: Prefix of SQLite's error name to what it means and what to do; the first that fits is used.
_REMEDIES: Final = (
    ("SQLITE_READONLY", "cannot be written; check the permissions of the file and of its directory"),
    ("SQLITE_FULL", "is full; free disk space and run again, nothing of the batch was written"),
    ("SQLITE_NOTADB", "is not a SQLite database; give another path"),
    ("SQLITE_CANTOPEN", "cannot be opened; check that its directory exists and can be written"),
    ("SQLITE_BUSY", "is locked by another process; stop that process or try again"),
    ("SQLITE_LOCKED", "is locked by another connection; try again"),
    ("SQLITE_CORRUPT", "is damaged; restore it from a copy, or import the recording into a new store"),
    ("SQLITE_IOERR", "cannot be read or written by this machine; check the disk"),
    ("SQLITE_PERM", "may not be accessed; check the permissions of the file"),
    ("SQLITE_CONSTRAINT_TRIGGER", "refuses the change; the event log is append-only"),
    (
        "SQLITE_CONSTRAINT_UNIQUE",
        "holds one of these events at another offset already; leave the chain to the store, and it drops repeats",
    ),
    ("SQLITE_CONSTRAINT", "refuses rows that break its rules; two writers must not write one partition"),
    ("SQLITE_TOOBIG", "cannot hold a value this large; park the event instead"),
    ("SQLITE_ERROR", "does not have the expected tables; run `sickbay migrate`"),
)


def create_file(path: Path) -> None:
    """Create an empty store file that only its owner may read (mode 0600); one that exists is left alone.

    Raises StoreError when the directory is missing or cannot be written.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be created ({error.strerror}); check that its directory exists and can be written"
        ) from error


def _use_wal(connection: sqlite3.Connection) -> None:
    """Put the file in WAL mode, where readers and the writer do not block each other; it stays so.

    The switch needs the file alone and does not wait by itself: of two processes that open a new store at once, one finds it
    locked and looks again.
    """
    for attempt in range(BUSY_TIMEOUT_MS // _WAL_RETRY_MS, -1, -1):
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if attempt == 0 or not error.sqlite_errorname.startswith("SQLITE_BUSY"):
                raise
            time.sleep(_WAL_RETRY_MS / 1000)
        else:
            return


def _is_archived(path: Path) -> bool:
    """Return whether nobody can be writing: the directory is not writable and no writer left its log beside the file.

    SQLite reads such a file only when told that it cannot change, because it may not put its lock file there.
    """
    effective = os.access in os.supports_effective_ids
    writable = os.access(path.parent, os.W_OK, effective_ids=effective)
    return not writable and not path.with_name(f"{path.name}-wal").exists()


def sqlite_engine(path: Path, *, read_only: bool) -> Engine:
    """Return an engine on an existing file; it is opened at the first use."""
    uri = f"file:{quote(str(path.absolute()))}?mode={'ro' if read_only else 'rw'}"
    if read_only and _is_archived(path):
        uri += "&immutable=1"

    def connect() -> sqlite3.Connection:
        # The driver must not begin transactions by itself: it would begin them DEFERRED and leave DDL outside.
        return sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
        )

    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        # INSERT OR REPLACE would otherwise delete a row of the log without firing its trigger.
        connection.execute("PRAGMA recursive_triggers = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            return
        _use_wal(connection)
        # In WAL, NORMAL may lose the last commits at a power cut, rows and positions together: they are delivered again.
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def writer(engine: Engine) -> Connection:
    """Return a connection whose transactions have the file's write lock from their beginning."""
    return engine.connect().execution_options(**{_WRITES: True})


def words(cause: Any) -> str | None:
    """Return what a driver's error means and what to do, ``None`` when there is no better word than the driver's."""
    name = getattr(cause, "sqlite_errorname", "")
    return next((remedy for prefix, remedy in _REMEDIES if name.startswith(prefix)), None)


def is_passing(cause: Any) -> bool:
    """Return whether the same may do a little later: another process has the file."""
    return str(getattr(cause, "sqlite_errorname", "")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
