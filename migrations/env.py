"""Alembic's environment: runs the revisions on the connection that ``projections.schema`` hands over.

It opens nothing and commits nothing. The whole upgrade, the version row included, stands in the caller's one transaction, so a
crash in the middle leaves the old schema.
"""

from __future__ import annotations

from alembic import context

from projections.tables import metadata
from sickbay.errors import StoreError

_connection = context.config.attributes.get("connection")
if _connection is None:
    raise StoreError("migrations run under a lock that Sickbay takes; use `sickbay migrate`")
# SQLite's DDL is transactional as long as nobody commits between two statements.
context.configure(
    connection=_connection, target_metadata=metadata, transactional_ddl=True, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
