"""Rows that measure a store: prepared log records into it, and the rows that became of them once more with nothing around.

Each is measured on either database; a PostgreSQL server of its own is started for the row, outside the clock, as the tests do
it (``tests/support/postgresql.py``). What is compared is the same on both sides: the rows, the tables and their indexes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from clock import Clock, Result
from inputs import ROOT, batches_of
from sqlalchemy import Connection, Table, insert, select

from projections.engine import Store
from projections.postgresql import COPY_PREFIX, is_postgresql
from projections.tables import metadata

#: Rows that a store has from the beginning.
_OWN: Final = frozenset({"checkpoint", "read_model", "store_meta"})
#: Rows of one statement.
_CHUNK: Final = 1_000


@contextmanager
def store_on(kind: str, folder: Path) -> Iterator[Callable[[str], Store]]:
    """Yield a function that makes a store under a name, on ``sqlite`` or ``postgresql``."""
    made: list[Store] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        sys.path.append(str(ROOT / "tests" / "support"))

        def make(name: str) -> Store:
            if kind == "postgresql":
                from postgresql import server

                where = server().empty()
            else:
                where = f"{place}/{name}.db"
            made.append(Store.open(where, create=True))
            return made[-1]

        try:
            yield make
        finally:
            for store in made:
                store.close()


def projected(folder: Path, kind: str, records: str) -> Result:
    """Write prepared log records, their read models and positions."""
    batches = batches_of(folder, records)
    with store_on(kind, folder) as make:
        store = make("store")
        with Clock() as clock:
            for batch in batches:
                store.write(batch)
        return clock.result(sum(map(len, batches)))


def bare(folder: Path, kind: str, records: str) -> Result:
    """Insert the rows that ``projected`` leaves, table by table: executemany into SQLite, COPY into PostgreSQL."""
    with store_on(kind, folder) as make:
        written, empty = make("written"), make("empty")
        for batch in batches_of(folder, records):
            written.write(batch)
        tables = [table for table in metadata.sorted_tables if table.name not in _OWN]
        with written.reading() as connection:
            rows = {table: [tuple(row) for row in connection.execute(select(table))] for table in tables}
        with empty.engine.connect() as connection, connection.begin(), Clock() as clock:
            for table, content in rows.items():
                for begin in range(0, len(content), _CHUNK):
                    insert_rows(connection, table, content[begin : begin + _CHUNK])
            connection.commit()
        return clock.result(sum(map(len, rows.values())))


def insert_rows(connection: Connection, table: Table, rows: list[tuple[Any, ...]]) -> None:
    """Insert rows given in the order of the columns by what the database has fastest, past row security."""
    if is_postgresql(connection):
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        connection.exec_driver_sql(f'{COPY_PREFIX}"{table.name}" ({names}) FROM STDIN', rows)
    else:
        connection.exec_driver_sql(str(insert(table).compile(dialect=connection.dialect)), rows)
