"""What was done on custody's word: taint rules and steps of moves; and the audit views that measure.

Frozen: it names every column itself, written as in revision 0001. The views stand in ``migrations/sql/0004_acting_views.sql``; on
PostgreSQL they check the rights of who asks, so that row security holds through them. No build before this one wrote the facts
that fill the tables, so a store that is brought here lacks no row.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import op

from sickbay.errors import StoreError

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_VIEWS = Path(__file__).parent.parent / "sql" / "0004_acting_views.sql"

_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "t": sa.Text().with_variant(sa.Text(collation="C"), "postgresql"),
    "n": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
}

_PLACE = "n generation partition_number log_offset"


def _columns(specification: str) -> list[sa.Column[Any]]:
    columns: list[sa.Column[Any]] = []
    for line in specification.split(";"):
        letter, *names = line.split()
        columns += [
            sa.Column(name.rstrip("?"), _TYPES[letter], nullable=name.endswith("?"), autoincrement=False)
            for name in names
        ]
    return columns


def _create(name: str, key: str, rest: str) -> None:
    keys = _columns(key)
    op.create_table(
        name,
        *keys,
        *_columns(rest),
        sa.PrimaryKeyConstraint(*(column.name for column in keys), name=f"pk_{name}"),
        sqlite_strict=True,
    )


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def upgrade() -> None:
    """Create the tables, the index that counts the leases of a move, and the views."""
    _create(
        "exclusion",
        f"{_PLACE}; t node rule",
        "n superseded_offset? at_ms; t event_id device_id episode_id effect state actor detail; n since_ms repairs",
    )
    _index("exclusion", "generation", "superseded_offset", "node", "rule")
    _index("exclusion", "generation", "episode_id")
    _create(
        "move_step",
        _PLACE,
        "t event_id request_id actor node device_id move_id step detail; n at_ms token",
    )
    _index("move_step", "generation", "move_id")
    _index("move", "generation", "move_id", "log_offset")
    script = _VIEWS.read_text(encoding="utf-8")
    if op.get_bind().dialect.name == "postgresql":
        checked = r"CREATE VIEW \1 WITH (security_invoker = true)"
        script = re.sub(r"^CREATE VIEW (\w+)", checked, script, flags=re.MULTILINE)
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Refused: what was answered about rules and moves can be asked again for as long as the store is kept."""
    raise StoreError(
        "revision 0004 belongs to a store that holds the audit log and is never taken back; use a copy of the database instead"
    )
