"""Digests: equal for equal rows, different for any other row."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from projections.digest import table_digest
from projections.tables import CUSTODY_TABLES, checkpoint


@pytest.mark.parametrize("table", [*CUSTODY_TABLES, checkpoint], ids=lambda table: table.name)
def test_every_column_of_every_table_counts(own_store, table):
    """Another value in any column of one row, or one row less, changes the digest; the generation does not."""
    with own_store.engine.connect() as connection, connection.begin() as outer:
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        expected = table_digest(connection, table)
        first = connection.execute(sa.select(*table.primary_key.columns)).first()
        row = sa.and_(
            *(column == value for column, value in zip(table.primary_key.columns, first, strict=True))
        )
        for column in table.columns:
            other = {"TEXT": "zz", "INTEGER": 999_999_999, "BLOB": b"z" * 32}[
                str(column.type.compile(connection.dialect))
            ]
            inner = connection.begin_nested()
            connection.execute(sa.update(table).where(row).values({column.name: other}))
            changed = table_digest(connection, table)
            assert (changed == expected) is (column.name == "generation"), column.name
            inner.rollback()
        connection.execute(sa.delete(table).where(row))
        assert expected != table_digest(connection, table)
        outer.rollback()


def test_a_generation_is_digested_alone(own_store):
    """Rows of another generation do not count, and an empty generation is like any other."""
    table = CUSTODY_TABLES[0]
    with own_store.reading() as connection:
        assert table_digest(connection, table, 1) == table_digest(connection, table)
        assert table_digest(connection, table, 2) == table_digest(connection, table, 3)
        assert table_digest(connection, table, 2) != table_digest(connection, table, 1)
