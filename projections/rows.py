"""The few ways in which read models write rows: insert many, insert or replace by key, and versions that supersede.

Each has a form for each database, and the same rows come of both.

Everything here loads what a batch touches, changes it in memory and writes it back in the caller's transaction. Nothing is kept
between transactions, because another process may write the same database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    RowMapping,
    Table,
    and_,
    bindparam,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import sqlite

from projections import recordset
from projections.postgresql import COPY_PREFIX, is_postgresql

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]
Item = TypeVar("Item")

#: The column that makes a row a tenant's: on PostgreSQL a table that has it gets row security (``projections.roles``).
TENANT_COLUMN: Final = "namespace"

#: Keys in one IN list: SQLite allows 32,766 parameters and PostgreSQL 65,535, and a longer list is planned no better.
KEYS_PER_QUERY: Final = 500


_encoder: Final = msgspec.json.Encoder()


def canonical(items: Sequence[object]) -> str:
    """Return a list as canonical JSON text, the way it stands in a column."""
    return _encoder.encode(items).decode()


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most ``size``."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def insert_tuples(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows given in the order of the table's columns, none of which may be there yet: the fast way.

    SQLite takes them by the driver's own executemany, PostgreSQL by COPY; a table that tenants read has row security there,
    which COPY does not pass.
    """
    if not rows:
        return
    names = [column.name for column in table.columns]
    if not is_postgresql(connection):
        connection.exec_driver_sql(_inserting(table), list(rows))
    elif TENANT_COLUMN in names:
        recordset.insert_rows(connection, table, [dict(zip(names, row, strict=True)) for row in rows])
    else:
        quote = connection.dialect.identifier_preparer.quote
        columns = ", ".join(quote(name) for name in names)
        connection.exec_driver_sql(f"{COPY_PREFIX}{quote(table.name)} ({columns}) FROM STDIN", list(rows))


@lru_cache(maxsize=256)
def _inserting(table: Table) -> str:
    """Return SQLite's statement that inserts one row; to compile it takes longer than to insert a small batch."""
    return str(insert(table).compile(dialect=sqlite.dialect(paramstyle="qmark")))


def insert_many(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that each name every column of the table; what else they name is left out."""
    names = [column.name for column in table.columns]
    insert_tuples(connection, table, [tuple([row[name] for name in names]) for row in rows])


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, or replace those with the same primary key; no key may come twice in ``rows``."""
    if not rows:
        return
    if is_postgresql(connection):
        recordset.upsert_rows(connection, table, rows)
        return
    statement = sqlite.insert(table)
    keys = [column.name for column in table.primary_key.columns]
    replaced = {
        column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys
    }
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=replaced), rows)


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows whose primary key is not there yet; the others are left as they are."""
    if not rows:
        return
    if is_postgresql(connection):
        recordset.insert_rows(connection, table, rows, "ON CONFLICT DO NOTHING")
    else:
        connection.execute(sqlite.insert(table).on_conflict_do_nothing(), rows)


def update_column(
    connection: Connection, table: Table, keys: Sequence[str], changed: str, rows: Sequence[Row]
) -> None:
    """Set one column of the rows that ``keys`` name to what each of ``rows`` says; what else they name is left out."""
    if not rows:
        return
    if is_postgresql(connection):
        recordset.update_rows(connection, table, keys, changed, rows)
        return
    connection.execute(
        update(table)
        .where(and_(*(table.c[name] == bindparam(f"key_{name}") for name in keys)))
        .values({changed: bindparam("changed_to")}),
        [{f"key_{name}": row[name] for name in keys} | {"changed_to": row[changed]} for row in rows],
    )


def load_rows(
    connection: Connection,
    table: Table,
    names: tuple[str, ...],
    narrow: str,
    generation: int,
    keys: Iterable[Key],
    *conditions: ColumnElement[bool],
) -> Iterator[RowMapping]:
    """Yield the rows of one generation whose ``names`` are one of ``keys``, and for which the conditions hold.

    ``narrow`` is one of the names, the one that an index leads with. It is said twice on SQLite, which seeks with a list and only
    filters with a list of pairs; PostgreSQL joins the keys, in one statement of one shape.
    """
    columns = table.c
    wanted = select(table).where(columns.generation == generation, *conditions)
    if is_postgresql(connection):
        given = recordset.given_keys(table, names)
        same = and_(*(columns[name] == given.c[name] for name in names))
        rows = [dict(zip(names, key, strict=True)) for key in sorted(keys)]
        if rows:
            yield from connection.execute(
                wanted.join(given, same), {recordset.ROWS: recordset.encoded(rows)}
            ).mappings()
        return
    place = names.index(narrow)
    query = wanted.where(
        columns[narrow].in_(bindparam("narrowed", expanding=True)),
        tuple_(*(columns[name] for name in names)).in_(bindparam("keys", expanding=True)),
    )
    for chunk in chunks(sorted(keys), KEYS_PER_QUERY):
        narrowed = sorted({key[place] for key in chunk})
        yield from connection.execute(query, {"narrowed": narrowed, "keys": chunk}).mappings()


def known_events(
    connection: Connection, log: Table, partition: int, event_ids: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Return event id -> (offset, at_ms) of those events that the partition already holds."""
    found: dict[str, tuple[int, int]] = {}
    query = select(log.c.event_id, log.c.log_offset, log.c.at_ms).where(log.c.partition_number == partition)
    if is_postgresql(connection):
        query = query.where(log.c.event_id == func.any(bindparam("ids", type_=ARRAY(log.c.event_id.type))))
    else:
        query = query.where(log.c.event_id.in_(bindparam("ids", expanding=True)))
    for chunk in chunks(event_ids, KEYS_PER_QUERY):
        rows = connection.execute(query, {"ids": chunk})
        found |= {event_id: (offset, at_ms) for event_id, offset, at_ms in rows}
    return found


class Versions:
    """The versions of one table that a batch touches.

    A version holds from its place in the log until the next one of the same key supersedes it. Rows are never changed but for
    ``superseded_offset``, so what was known at any position can be asked for ever after.
    """

    def __init__(self, connection: Connection, table: Table, key: tuple[str, ...], generation: int) -> None:
        self._connection = connection
        self._table = table
        self._key = key
        self._generation = generation
        self._latest: dict[Key, Row] = {}
        self._superseded: list[Row] = []
        self._new: list[Row] = []

    def load(self, keys: Iterable[Key]) -> None:
        """Read the newest version of each ``(partition, *key)``; call once, before the first ``put``."""
        names = ("partition_number", *self._key)
        newest = self._table.c.superseded_offset.is_(None)
        for row in load_rows(
            self._connection, self._table, names, self._key[0], self._generation, keys, newest
        ):
            self._latest[self._key_of(row)] = dict(row)

    def latest(self, *key: Any) -> Row | None:
        """Return the newest version of ``(partition, *key)``, this batch's included."""
        return self._latest.get(key)

    def put(self, row: Row) -> None:
        """Add a version: every column but ``generation`` and ``superseded_offset``."""
        row = row | {"generation": self._generation, "superseded_offset": None}
        key = self._key_of(row)
        before = self._latest.get(key)
        if before is not None:
            before["superseded_offset"] = row["log_offset"]
            if not before.get("is_new"):
                self._superseded.append(before)
        self._latest[key] = row | {"is_new": True}
        self._new.append(self._latest[key])

    def flush(self) -> None:
        """Write what the batch added."""
        names = ("generation", "partition_number", "log_offset", *self._key)
        update_column(self._connection, self._table, names, "superseded_offset", self._superseded)
        insert_many(self._connection, self._table, self._new)

    def _key_of(self, row: Row | RowMapping) -> Key:
        return (row["partition_number"], *(row[part] for part in self._key))
