"""Who may do what in a PostgreSQL store: group roles, their privileges, and row security for tenants.

The statements stand in ``migrations/sql``; this module says when they run. The roles belong to the whole server, so they are
made on demand only (``sickbay migrate --roles``); what they may do is said again after each migration, so a new table is in
nobody's way. A SQLite file has none of this: its permissions decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Final

from sqlalchemy import Connection, text

from projections.postgresql import SCHEMA, become, run_script, schema_owner

OWNER: Final = "sickbay_owner"
MIGRATOR: Final = "sickbay_migrator"
PROJECTOR: Final = "sickbay_projector"
AUDITOR: Final = "sickbay_auditor"
TENANT: Final = "sickbay_tenant"
ROLES: Final = (OWNER, MIGRATOR, PROJECTOR, AUDITOR, TENANT)

#: The views that tenants may read, each with the tables below it: the view checks the rights of who asks, so a tenant needs
#: both. Only what carries a namespace in every row may stand here; what names devices and nodes shows other tenants' work.
TENANT_VIEWS: Final[dict[str, tuple[str, ...]]] = {
    "audit_moves": ("move", "read_model"),
    "audit_ledger_entries": ("ledger_entry", "read_model"),
    "audit_ledger_drift": ("ledger_drift", "read_model"),
    "audit_ledger_duplicates": ("ledger_refusal", "read_model"),
}

#: The current user, and whether it can act as the owner. Since 16 who made a role is its member and may all the same not become it.
_MAY_BECOME_OWNER: Final = (
    f"SELECT current_user, pg_has_role(current_user, '{OWNER}',"
    " CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END)"
)

#: Tables below those views that name nobody.
PLAIN_TABLES: Final = frozenset({"read_model"})


def _script(name: str) -> str:
    return (files("migrations") / "sql" / name).read_text(encoding="utf-8")


@contextmanager
def created(connection: Connection) -> Iterator[None]:
    """Make the roles, and the schema that belongs to their owner; what is there stays, and is handed to that owner.

    Needs a superuser, or the owner of the database with CREATEROLE. Who is no member of the owner is one inside, in the same
    transaction as everything else, so nothing of it is left when that fails.
    """
    run_script(connection, _script("roles.sql"))
    user, is_member = connection.exec_driver_sql(_MAY_BECOME_OWNER).one()
    if not is_member:
        connection.exec_driver_sql(f"GRANT {OWNER} TO CURRENT_USER")
    run_script(connection, _script("schema.sql"))
    yield
    if not is_member:
        become(connection, user)
        connection.exec_driver_sql(f"REVOKE {OWNER} FROM CURRENT_USER")


def prepare_schema(connection: Connection) -> bool:
    """Make the schema if it is missing, and become its owner if that is another role; return whether it belongs to our roles."""
    owner = schema_owner(connection)
    if owner is None:
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
        return False
    may = connection.execute(
        text("SELECT :owner <> current_user AND pg_has_role(current_user, :owner, 'MEMBER')"),
        {"owner": owner},
    ).scalar_one()
    if may:
        become(connection, owner)
    return owner == OWNER


def grant(connection: Connection) -> None:
    """Say what each role may do with what is there now, and put every table that has a namespace under row security."""
    become(connection, OWNER)
    run_script(connection, _script("privileges.sql"))
    secured = set(
        connection.execute(
            text(
                "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(:schema)"
                " AND relrowsecurity AND relforcerowsecurity"
            ),
            {"schema": SCHEMA},
        ).scalars()
    )
    for view, tables in TENANT_VIEWS.items():
        for name in (view, *tables):
            assert name == view or name in secured | PLAIN_TABLES, (
                f"{name} would show tenants each other's rows"
            )
            connection.exec_driver_sql(f"GRANT SELECT ON {SCHEMA}.{name} TO {TENANT}")
