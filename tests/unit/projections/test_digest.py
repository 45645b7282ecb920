"""Digests: equal for equal rows, different for any other row."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from projections.digest import table_digest
from projections.tables import CUSTODY_TABLES, checkpoint


def unchecked(connection, table):
    """Return what lets any value in until the transaction is rolled back."""
    if connection.dialect.name == "sqlite":
        return ["PRAGMA ignore_check_constraints = ON"]
    checks = sa.inspect(connection).get_check_constraints(table.name)
    return [f"ALTER TABLE {table.name} DROP CONSTRAINT {check['name']}" for check in checks]


@pytest.mark.parametrize("table", [*CUSTODY_TABLES, checkpoint], ids=lambda table: table.name)
def test_every_column_of_every_table_counts(own_store, table):
    """Another value in any column of one row, or one row less, changes the digest; the generation does not."""
    with own_store.engine.connect() as connection, connection.begin() as outer:
        for statement in unchecked(connection, table):
            connection.exec_driver_sql(statement)
        expected = table_digest(connection, table)
        first = connection.execute(sa.select(*table.primary_key.columns)).first()
        row = sa.and_(
            *(column == value for column, value in zip(table.primary_key.columns, first, strict=True))
        )
        for column in table.columns:
            other = {str: "zz", int: 999_999_999, bytes: b"z" * 32}[column.type.python_type]
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
