"""PostgreSQL: a server, many writers, one for each partition.

Everything stands in one schema, ``sickbay``, which is the whole search path. A reading transaction is one snapshot (REPEATABLE
READ READ ONLY). A writing one is READ COMMITTED and takes its locks first, so that what it reads afterwards is the newest: the
checkpoint rows of the partitions it writes, or the whole table when nobody else may write. These are locks that only a role
that may write can take; an advisory lock could be held by any tenant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from sickbay.errors import StoreError

#: The schema that holds every table, view and function of Sickbay.
SCHEMA: Final = "sickbay"

#: The oldest server: views that check the rights of who asks (``security_invoker``) came with it.
_SERVER_MIN: Final = 150_000

#: How a statement begins whose parameters are rows to be copied; see ``postgresql_engine``.
COPY_PREFIX: Final = "COPY "

#: What a session of ours is limited to unless its role, its database or its URL says otherwise.
_LIMITS_MS: Final = {
    "lock_timeout": 30_000,
    "statement_timeout": 600_000,
    "idle_in_transaction_session_timeout": 600_000,
}

#: Parameters of the connection, under those of the URL: a server that vanished is noticed, and not waited for.
_CONNECT: Final = {
    "connect_timeout": 10,
    "application_name": "sickbay",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}

#: One key in the database's own space of advisory locks: migrations take turns by it, before there is any table to lock.
_MIGRATION_LOCK: Final = 7_425_228_016_130_051
#: How long a change of the schema waits for those who use it, so that those behind it do not wait much longer.
_DDL_LOCK_TIMEOUT_MS: Final = 5_000

_REFUSED: Final = (
    "may not be used in this way by this role; ask its owner for membership of sickbay_auditor (to read), sickbay_projector"
    " (to write) or sickbay_migrator (to migrate)"
)
#: Beginning of SQLSTATE to what it means and what to do; the first that fits is used.
_REMEDIES: Final = (
    ("25006", "cannot be written; it was opened for reading, or the server is a standby: give the primary"),
    ("53100", "is full; free disk space on the server and run again, nothing of the batch was written"),
    ("53300", "has no connection left; close other sessions or raise max_connections"),
    ("53", "has not enough resources; look at the server, and run again"),
    ("55P03", "is locked by another process; stop that process or try again"),
    ("57014", "took too long and was cancelled; raise statement_timeout for this role, or ask for less"),
    (
        "57P",
        "is shutting down or starting; run again when the server is up, nothing of the batch was written",
    ),
    ("25P03", "closed a transaction that stood idle; run again"),
    ("42501", _REFUSED),
    ("28", "refuses this user; check the user, the password (PGPASSFILE, PGPASSWORD) and pg_hba.conf"),
    ("3D000", "does not exist on this server; create it with `createdb`, then run `sickbay migrate`"),
    ("3F000", "has no schema yet; run `sickbay migrate`"),
    ("42P01", "does not have the expected tables; run `sickbay migrate`"),
    ("42703", "does not have the expected tables; run `sickbay migrate`"),
    ("23001", "refuses the change; the event log is append-only"),
    (
        "23505",
        "holds one of these events at another offset already; leave the chain to the store, and it drops repeats",
    ),
    ("23", "refuses rows that break its rules; two writers must not write one partition"),
    ("22003", "cannot hold an integer beyond 64 bits; park the event that carries it"),
    ("54", "cannot hold a value this large; park the event instead"),
    ("XX001", "is damaged; restore it from a copy, or import the recording into a new store"),
    ("XX002", "is damaged; rebuild its indexes (REINDEX), and check it with `sickbay verify`"),
    ("58", "cannot be read or written by the server; check its disk"),
)
#: The same for connections that did not come about: libpq gives words and no code.
_UNREACHED: Final = (
    (r"password|authentication|pg_hba|role \".*\" does not exist", "28"),
    (r"database \".*\" does not exist", "3D000"),
    (r"permission denied for database", "42501"),
    (r"too many (clients|connections)|remaining connection slots", "53300"),
    (r"starting up|shutting down|recovery mode", "57P"),
)
_LOST: Final = "cannot be reached; check host, port and that the server runs, then run again: what is there is not written twice"
#: Beginnings of states that pass: lost, full, out of something, locked, cancelled, going down, and a primary that is not one yet.
_PASSING: Final = ("08", "25006", "53", "55P03", "57014", "57P", "25P03")
#: States after which the whole transaction may be tried again: a failed serialization, a deadlock.
_REPEATABLE: Final = frozenset({"40001", "40P01"})


def postgresql_engine(url: str, *, read_only: bool) -> Engine:
    """Return an engine on a database; it is reached at the first use.

    ``COPY … FROM STDIN`` given to ``exec_driver_sql`` with a list of tuples sends them as rows.
    """
    pinned = f"-c search_path={SCHEMA} -c timezone=UTC"
    engine = create_engine(url, execution_options={"postgresql_readonly": True} if read_only else {})
    given = engine.url.query

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, _arguments: Any, parameters: dict[str, Any]) -> None:
        for name, value in _CONNECT.items():
            parameters.setdefault(name, value)
        # what is pinned comes last and wins
        parameters["options"] = " ".join([str(given.get("options", "")), pinned]).strip()

    # first of all: SQLAlchemy's own first questions need a database that answers in text
    @event.listens_for(engine, "connect", insert=True)
    def prepare(connection: Any, _record: object) -> None:
        version = connection.info.server_version
        if version < _SERVER_MIN:
            raise StoreError(f"the server is PostgreSQL {version // 10_000}; 15 or newer is needed")
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreError(
                f"the database has the encoding {encoding}; create it with `createdb -E UTF8 -T template0`"
            )
        connection.autocommit = True
        connection.execute(
            "SELECT set_config(name, value, false)"
            " FROM unnest(%s::text[], %s::text[]) AS wanted(name, value) WHERE current_setting(name) = '0'",
            (list(_LIMITS_MS), [f"{limit}ms" for limit in _LIMITS_MS.values()]),
        )
        connection.autocommit = False
        connection.server_cursor_factory = _server_cursor()

    def copy(cursor: Any, statement: str, parameters: Any, _context: object) -> bool | None:
        if not statement.startswith(COPY_PREFIX):
            return None
        with cursor.copy(statement) as target:
            for row in parameters:
                target.write_row(row)
        return True

    def copy_one(cursor: Any, statement: str, parameters: Any, context: object) -> bool | None:
        return copy(cursor, statement, [parameters], context)

    event.listen(engine, "do_executemany", copy)
    event.listen(engine, "do_execute", copy_one)
    return engine


@cache
def _server_cursor() -> type[Any]:
    """Return a cursor for long answers that is not missed when nobody reads to the end: the server drops it with the transaction."""
    # here and not above: a store in a file has no need of the driver
    from psycopg import ServerCursor

    class Cursor(ServerCursor[Any]):
        """As the driver's own, without its warning."""

        def __del__(self, _warn: object = None) -> None:
            return

    return Cursor


def is_postgresql(reached: Connection | Engine) -> bool:
    """Return whether a connection or an engine is of this database."""
    return reached.dialect.name == "postgresql"


def snapshot(engine: Engine) -> Connection:
    """Return a connection whose transactions see one state and write nothing."""
    return engine.connect().execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def lock_all(connection: Connection) -> None:
    """Wait until nobody else writes, and keep all writers waiting until the transaction ends; readers go on."""
    connection.exec_driver_sql("LOCK TABLE checkpoint IN EXCLUSIVE MODE")


def lock_parking(connection: Connection) -> None:
    """Take turns at numbering parked items, which belong to no partition."""
    connection.exec_driver_sql("SELECT 1 FROM store_meta FOR UPDATE")


def lock_migration(connection: Connection) -> None:
    """Wait for another migration; from here on a lock that a reader or writer holds is waited for a few seconds only."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_DDL_LOCK_TIMEOUT_MS}")


def schema_owner(connection: Connection) -> str | None:
    """Return the role that owns the schema, ``None`` when there is no schema yet."""
    query = text("SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = :name")
    owner = connection.execute(query, {"name": SCHEMA}).scalar()
    return None if owner is None else str(owner)


def become(connection: Connection, role: str) -> None:
    """Act as another role until the transaction ends. The caller must be a member of it."""
    connection.execute(text("SELECT set_config('role', :role, true)"), {"role": role})


def run_script(connection: Connection, script: str) -> None:
    """Run a file of statements inside the caller's transaction, as it stands: nothing in it is taken for a parameter.

    Raises DBAPIError, as a statement that SQLAlchemy runs.
    """
    driver: Any = connection.connection.driver_connection
    assert connection.dialect.dbapi is not None, "a connection has a driver"
    try:
        driver.execute(script)
    except connection.dialect.dbapi.Error as error:
        raise DBAPIError(script, None, error) from error


def is_repeatable(cause: Any) -> bool:
    """Return whether the server asks for the same transaction again."""
    return getattr(cause, "sqlstate", None) in _REPEATABLE


def words(cause: Any) -> str | None:
    """Return what a driver's error means and what to do, ``None`` when it is no error of this driver."""
    if not hasattr(cause, "sqlstate"):
        return None
    state = cause.sqlstate or _state_of(str(cause))
    for prefix, remedy in _REMEDIES:
        if state.startswith(prefix):
            return remedy
    return _LOST if state.startswith("08") or (_is_operational(cause) and not cause.sqlstate) else None


def is_passing(cause: Any) -> bool:
    """Return whether the same may do a little later: the server cannot be reached, is busy, starts or stops."""
    if not hasattr(cause, "sqlstate"):
        return False
    state = cause.sqlstate or _state_of(str(cause))
    return state.startswith(_PASSING) or (_is_operational(cause) and not state)


def _is_operational(cause: object) -> bool:
    # by name: a store in a file has no need of the driver
    return any(kind.__name__ == "OperationalError" for kind in type(cause).__mro__)


def _state_of(message: str) -> str:
    return next((state for pattern, state in _UNREACHED if re.search(pattern, message)), "")


def one_line(messages: Iterable[str]) -> str:
    """Return a driver's many lines as one."""
    return " ".join(" ".join(messages).split())
