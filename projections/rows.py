"""The few ways in which read models write rows: insert many, insert or replace by key, and versions that supersede.

Everything here loads what a batch touches, changes it in memory and writes it back in the caller's transaction. Nothing is kept
between transactions, because another process may write the same database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from sqlalchemy import (
    Connection,
    RowMapping,
    Select,
    Table,
    and_,
    bindparam,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from sickbay.errors import StoreError

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]
Item = TypeVar("Item")

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
    """Insert rows given in the order of the table's columns, by the driver's own executemany: the fast way."""
    if not rows:
        return
    compiled = insert(table).compile(dialect=connection.dialect)
    if compiled.positional:
        connection.exec_driver_sql(str(compiled), list(rows))
    else:
        names = [column.name for column in table.columns]
        connection.exec_driver_sql(str(compiled), [dict(zip(names, row, strict=True)) for row in rows])


def insert_many(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that each name every column of the table; what else they name is left out."""
    names = [column.name for column in table.columns]
    insert_tuples(connection, table, [tuple([row[name] for name in names]) for row in rows])


def _conflict_insert(connection: Connection, table: Table) -> Any:
    match connection.dialect.name:
        case "sqlite":
            return sqlite.insert(table)
        case "postgresql":
            return postgresql.insert(table)
        case name:
            raise StoreError(f"no way to write to a {name} database; use SQLite")


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, or replace those with the same primary key; no key may come twice in ``rows``."""
    if not rows:
        return
    statement = _conflict_insert(connection, table)
    keys = [column.name for column in table.primary_key.columns]
    replaced = {
        column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys
    }
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=replaced), rows)


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows whose primary key is not there yet; the others are left as they are."""
    if rows:
        connection.execute(_conflict_insert(connection, table).on_conflict_do_nothing(), rows)


def keyed(table: Table, names: tuple[str, ...], narrow: str) -> Select[Any]:
    """Return a query for the rows of one generation whose ``names`` are one of the parameter ``keys``.

    ``narrow`` is one of the names, the one that an index leads with; its values are the parameter ``narrowed``. It is said
    twice because SQLite seeks with a list and only filters with a list of pairs.
    """
    return select(table).where(
        table.c.generation == bindparam("generation"),
        table.c[narrow].in_(bindparam("narrowed", expanding=True)),
        tuple_(*(table.c[name] for name in names)).in_(bindparam("keys", expanding=True)),
    )


def known_events(
    connection: Connection, log: Table, partition: int, event_ids: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Return event id -> (offset, at_ms) of those events that the partition already holds."""
    found: dict[str, tuple[int, int]] = {}
    for chunk in chunks(event_ids, KEYS_PER_QUERY):
        rows = connection.execute(
            select(log.c.event_id, log.c.log_offset, log.c.at_ms).where(
                log.c.partition_number == partition, log.c.event_id.in_(chunk)
            )
        )
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
        wanted = keyed(self._table, names, self._key[0]).where(self._table.c.superseded_offset.is_(None))
        for chunk in chunks(sorted(keys), KEYS_PER_QUERY):
            narrowed = sorted({key[1] for key in chunk})
            rows = self._connection.execute(
                wanted, {"generation": self._generation, "narrowed": narrowed, "keys": chunk}
            )
            for row in rows.mappings():
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
        if self._superseded:
            columns = self._table.c
            names = ("generation", "partition_number", "log_offset", *self._key)
            self._connection.execute(
                update(self._table)
                .where(and_(*(columns[name] == bindparam(f"key_{name}") for name in names)))
                .values(superseded_offset=bindparam("until")),
                [
                    {f"key_{name}": row[name] for name in names} | {"until": row["superseded_offset"]}
                    for row in self._superseded
                ],
            )
        insert_many(self._connection, self._table, self._new)

    def _key_of(self, row: Row | RowMapping) -> Key:
        return (row["partition_number"], *(row[part] for part in self._key))
