"""One digest for a set of rows, the same on every database: how two stores, or two generations, are proven equal.

Rows are read in the order of their primary key and hashed as canonical JSON, without the generation. NULL, text, 64-bit integers
and bytes are all there is, so no dialect can spell a row in two ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec
from sqlalchemy import Connection, Table, select

#: Rows fetched at a time, so that memory does not grow with the table.
_ROWS_PER_FETCH: Final = 1_000


def table_digest(connection: Connection, table: Table, generation: int | None = None) -> str:
    """Return the SHA-256 of a table's rows in hexadecimal; of one generation when the table has generations."""
    columns = [column for column in table.columns if column.name != "generation"]
    query = select(*columns).order_by(*(column for column in table.primary_key.columns if column in columns))
    if generation is not None:
        query = query.where(table.c.generation == generation)
    encoder, digest = msgspec.json.Encoder(), sha256()
    with connection.execute(query, execution_options={"yield_per": _ROWS_PER_FETCH}) as rows:
        for row in rows:
            digest.update(encoder.encode(tuple(row)))
            digest.update(b"\n")
    return digest.hexdigest()


def digests(connection: Connection, tables: Iterable[Table], generation: int) -> dict[str, str]:
    """Return table name -> digest of one generation of read models."""
    return {table.name: table_digest(connection, table, generation) for table in tables}
