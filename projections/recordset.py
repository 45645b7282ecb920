r"""Many rows in one statement of PostgreSQL: they travel as one JSON text and are a table there (``json_to_recordset``).

One statement is planned and sent however many rows there are, small batches included. Conflict-free rows go faster still by
COPY, but COPY does not write to a table with row security. JSON holds every value that a row may have: NULL, text without
U+0000, 64-bit integers, and bytes as ``\x…``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import JSON, Connection, LargeBinary, Table, Text, bindparam, cast, column, func
from sqlalchemy.sql.selectable import TableValuedAlias

#: The parameter that holds the rows.
ROWS: Final = "rows"
#: Rows in one statement: a few megabytes.
_ROWS_PER_STATEMENT: Final = 5_000

_encoder: Final = msgspec.json.Encoder()


def _quoted(connection: Connection, names: Sequence[str]) -> list[str]:
    quote = connection.dialect.identifier_preparer.quote
    return [quote(name) for name in names]


def _source(connection: Connection, table: Table, names: Sequence[str]) -> str:
    types = [table.c[name].type.compile(dialect=connection.dialect) for name in names]
    columns = ", ".join(
        f"{name} {kind}" for name, kind in zip(_quoted(connection, names), types, strict=True)
    )
    return f"json_to_recordset(%({ROWS})s::json) AS given({columns})"


@lru_cache(maxsize=256)
def _plan(table: Table) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """Return the names of a table's columns, of its key, and of those that hold bytes."""
    keys = tuple(column.name for column in table.primary_key.columns)
    raw = frozenset(column.name for column in table.columns if isinstance(column.type, LargeBinary))
    return tuple(column.name for column in table.columns), keys, raw


def _run(
    connection: Connection,
    statement: str,
    names: Sequence[str],
    raw: frozenset[str],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        chunk = [{name: row[name] for name in names} for row in rows[start : start + _ROWS_PER_STATEMENT]]
        for name in raw:
            for row in chunk:
                row[name] = f"\\x{row[name].hex()}" if row[name] is not None else None
        connection.exec_driver_sql(statement, {ROWS: encoded(chunk)})


def encoded(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows without bytes as the JSON text that travels."""
    return _encoder.encode(rows).decode()


def given_keys(table: Table, names: Sequence[str]) -> TableValuedAlias:
    """Return the parameter ``ROWS``, holding ``encoded`` rows of some columns of a table, as a table to join."""
    rows = cast(bindparam(ROWS, type_=Text()), JSON)
    columns = [column(name, table.c[name].type) for name in names]
    return func.json_to_recordset(rows).table_valued(*columns).render_derived("given", with_types=True)


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], conflict: str = ""
) -> None:
    """Insert rows that each name every column; ``conflict`` is the rest of the statement, from constants only."""
    names, _, raw = _plan(table)
    columns = ", ".join(_quoted(connection, names))
    (target,) = _quoted(connection, [table.name])
    source = _source(connection, table, names)
    statement = f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {source} {conflict}"  # noqa: S608 - names of our tables
    _run(connection, statement, names, raw, rows)


def upsert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, or replace those with the same primary key; no key may come twice."""
    names, keys, _ = _plan(table)
    replaced = _quoted(connection, [name for name in names if name not in keys])
    change = ", ".join(f"{name} = excluded.{name}" for name in replaced)
    key = ", ".join(_quoted(connection, keys))
    insert_rows(connection, table, rows, f"ON CONFLICT ({key}) DO UPDATE SET {change}")


def update_rows(
    connection: Connection, table: Table, keys: Sequence[str], changed: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Set one column of the rows that ``keys`` name to what each of ``rows`` says."""
    names = (*keys, changed)
    (target,) = _quoted(connection, [table.name])
    (column,) = _quoted(connection, [changed])
    same = " AND ".join(f"{target}.{name} = given.{name}" for name in _quoted(connection, keys))
    source = _source(connection, table, names)
    statement = f"UPDATE {target} SET {column} = given.{column} FROM {source} WHERE {same}"  # noqa: S608 - names of our tables
    _run(connection, statement, names, frozenset(), rows)
