"""How a database is reached, whichever it is: transactions, and errors in our words.

This and its two engines (``projections.sqlite``, ``projections.postgresql``) are the only modules that tell SQLite from
PostgreSQL by the connection, beside the statements of ``projections.rows``; queries must not care.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from projections import postgresql, sqlite
from projections.places import Place
from sickbay.errors import StoreError, UnavailableError

Result = TypeVar("Result")

#: How often a batch is tried that the server asks for again (S8), or that may have been lost while it was committed (S3).
ATTEMPTS_MAX: Final = 5
#: How often a server that went away is looked for, to learn what became of a commit; the pauses add up to half a minute.
_LOOKS_MAX: Final = 8
_PAUSE_MS: Final = 20
_LOOK_PAUSE_MS: Final = 1_000


class ConflictError(UnavailableError):
    """The server undid the transaction and asks for it again."""


class CommitInDoubtError(UnavailableError):
    """The connection was lost while the transaction was committed, so it is there or it is not."""


def open_engine(place: Place, *, create: bool = False, read_only: bool = False) -> Engine:
    """Return an engine on a store; ``create`` makes the file of one that is a file.

    Raises StoreError when the file, or its directory, is missing or cannot be written. A server is reached at the first use.
    """
    path = place.path
    if path is None:
        return postgresql.postgresql_engine(place.opens, read_only=read_only)
    if create:
        sqlite.create_file(path)
    elif not path.exists():
        raise StoreError(f"{place}: there is no store; `sickbay replay` or `sickbay migrate` makes one")
    return sqlite.sqlite_engine(path, read_only=read_only)


@contextmanager
def reading(engine: Engine, place: str) -> Iterator[Connection]:
    """One reading transaction: one snapshot. Raises StoreError in our words."""
    with translated(place):
        opened = postgresql.snapshot(engine) if postgresql.is_postgresql(engine) else engine.connect()
        with opened as connection, connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine, place: str) -> Iterator[Connection]:
    """One writing transaction, while nobody else writes: all of it or nothing. Raises StoreError in our words."""
    with _writer(engine, place) as connection:
        if postgresql.is_postgresql(engine):
            postgresql.lock_all(connection)
        yield connection


@contextmanager
def migrating(engine: Engine, place: str) -> Iterator[Connection]:
    """One transaction that may change the schema: a second one waits, and then finds it done. Raises StoreError."""
    with _writer(engine, place) as connection:
        if postgresql.is_postgresql(engine):
            postgresql.lock_migration(connection)
        yield connection


def transacted(
    engine: Engine,
    place: str,
    work: Callable[[Connection], Result],
    landed: Callable[[Connection, Result], bool],
) -> Result:
    """Run ``work`` in one writing transaction that takes the locks it needs itself, and return its result.

    What the server asks for again is done again as a whole, five times at most. When the connection is lost while the
    transaction is committed, ``landed`` is asked, on a new connection, whether it is there; if not, it is done again.
    Raises StoreError.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        result: list[Result] = []
        try:
            with _writer(engine, place) as connection:
                result.append(work(connection))
        except ConflictError:
            if attempt == ATTEMPTS_MAX:
                raise
        except CommitInDoubtError as doubt:
            if _look(engine, place, partial(_landed, landed, result[0]), doubt):
                return result[0]
        else:
            return result[0]
        time.sleep(attempt * _PAUSE_MS / 1000)
    raise UnavailableError(
        f"{place}: the connection was lost at every one of {ATTEMPTS_MAX} commits; check the network and the server, then run"
        " again: nothing of the batch was written"
    )


def _landed(landed: Callable[[Connection, Result], bool], result: Result, connection: Connection) -> bool:
    return landed(connection, result)


def _look(
    engine: Engine, place: str, question: Callable[[Connection], bool], doubt: CommitInDoubtError
) -> bool:
    for look in range(1, _LOOKS_MAX + 1):
        try:
            with translated(place), engine.connect() as connection, connection.begin() as transaction:
                answer = question(connection)
                # the question takes locks, and leaves nothing
                transaction.rollback()
                return answer
        except StoreError:
            if look == _LOOKS_MAX:
                raise doubt from None
        time.sleep(look * _LOOK_PAUSE_MS / 1000)
    raise doubt


@contextmanager
def _writer(engine: Engine, place: str) -> Iterator[Connection]:
    opened = engine.connect if postgresql.is_postgresql(engine) else lambda: sqlite.writer(engine)
    with translated(place), opened() as connection, connection.begin() as transaction:
        yield connection
        try:
            transaction.commit()
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise CommitInDoubtError(
                f"{place}: the connection was lost while a batch was committed, and whether it is there is not known; run again"
                f" when the server is up, what is there is not written twice ({_told(error)})"
            ) from error


def _told(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return postgresql.one_line([str(cause)])


def store_error(error: Exception, place: str) -> StoreError:
    """Return what a driver's error means for the user, with the remedy."""
    cause: Any = getattr(error, "orig", None) or error
    if postgresql.is_repeatable(cause):
        return ConflictError(
            f"{place} undid the batch, because other writers were in its way; run again ({_told(error)})"
        )
    known = sqlite.words(cause) or postgresql.words(cause)
    if known is not None:
        kind = UnavailableError if sqlite.is_passing(cause) or postgresql.is_passing(cause) else StoreError
        return kind(f"{place} {known} ({_told(error)})")
    return StoreError(
        f"{place} cannot be used: {_told(error)}; check it with `sickbay verify`, or restore it from a copy"
    )


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Turn every error of the driver into StoreError; the original stays as its cause."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise store_error(error, place) from error
    except OverflowError as error:
        raise StoreError(
            f"{place} cannot hold an integer beyond 64 bits ({error}); park the event that carries it"
        ) from error
