"""The read models of the ledger and their audit views.

Frozen: it names every column itself, written as in revision 0001. The views stand in ``migrations/sql/0002_ledger_views.sql``; on
PostgreSQL they check the rights of who asks, so that row security holds through them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import op

from sickbay.errors import StoreError

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_VIEWS = Path(__file__).parent.parent / "sql" / "0002_ledger_views.sql"

_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "t": sa.Text().with_variant(sa.Text(collation="C"), "postgresql"),
    "n": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
}

_PLACE = "n generation partition_number log_offset"
_WHOSE = "namespace pod pod_uid claim claim_uid"


def _columns(specification: str) -> list[sa.Column[Any]]:
    columns: list[sa.Column[Any]] = []
    for line in specification.split(";"):
        letter, *names = line.split()
        columns += [
            sa.Column(name.rstrip("?"), _TYPES[letter], nullable=name.endswith("?"), autoincrement=False)
            for name in names
        ]
    return columns


def _create(name: str, key: str, rest: str, *constraints: sa.Constraint) -> None:
    keys = _columns(key)
    op.create_table(
        name,
        *keys,
        *_columns(rest),
        sa.PrimaryKeyConstraint(*(column.name for column in keys), name=f"pk_{name}"),
        *constraints,
        sqlite_strict=True,
    )


def _versions(name: str, key: str, rest: str) -> None:
    _create(name, f"{_PLACE}; t {key}", f"n superseded_offset? at_ms; t event_id; {rest}")
    op.create_index(f"ix_{name}_newest", name, ["generation", "superseded_offset", *key.split()])


def _journal() -> None:
    _create(
        "ledger_line",
        f"{_PLACE} line_number",
        "t event_id direction node book entry_key account resource numa; n amount_units amount_rest_nano at_ms;"
        " t pod_uid claim_uid",
        sa.CheckConstraint("amount_rest_nano >= 0", name=op.f("ck_ledger_line_rest_is_above_units")),
    )
    balance = "generation node book resource numa account at_ms log_offset partition_number amount_units amount_rest_nano"
    op.create_index("ix_ledger_line_balance", "ledger_line", balance.split())
    _versions(
        "ledger_entry",
        "entry_key book node",
        f"t state account {_WHOSE} device_id share_id mapping_version amounts covered; n posted_at_ms reversed_at_ms?",
    )
    op.create_index(
        "ix_ledger_entry_node", "ledger_entry", ["generation", "node", "state", "superseded_offset"]
    )
    op.create_index(
        "ix_ledger_entry_claim_uid", "ledger_entry", ["generation", "claim_uid", "superseded_offset"]
    )


def _verdicts() -> None:
    _versions(
        "ledger_verdict", "node", "t verdict holds node_class drivers policy; n since_ms reasons_since_ms"
    )
    _versions("ledger_driver", "node driver", "t node_class; n published")
    op.create_index("ix_ledger_driver_node", "ledger_driver", ["generation", "node", "driver", "log_offset"])
    _versions(
        "ledger_hold",
        "node reason scope",
        "n run; t driver node_class; n held_since_ms held_until_ms?; t detail",
    )
    _versions(
        "ledger_drift",
        "about node",
        "n run; t cause; n explained predicted found_at_ms cleared_at_ms?;"
        f" t {_WHOSE} recorded derived exact detail",
    )
    _versions(
        "ledger_refusal",
        "entry_key book node contender",
        f"n run refused_at_ms withdrawn_at_ms?; t amounts {_WHOSE}",
    )


def _requests() -> None:
    """Give requests the ledger version that opening a gate may name; nobody could name one before."""
    op.execute("DROP VIEW audit_requests")
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("request", *_columns("t ledger_version?"))
        return
    # SQLite would write a new column behind the constraints
    op.rename_table("request", "request_before")
    _create(
        "request",
        "n generation partition_number log_offset",
        "t event_id kind request_id actor node device_id; n at_ms; t episode_id? move_id? scope? reason? detail?;"
        " n until_ms? attempt? passed? token?; t outcome?; n closed?; t ledger_version?",
    )
    op.execute("INSERT INTO request SELECT *, NULL FROM request_before")
    op.drop_table("request_before")


def upgrade() -> None:
    """Create everything."""
    _journal()
    _verdicts()
    _requests()
    # a store that was made before answers that there is nothing, and need not be written first
    op.execute("INSERT INTO read_model (name, live_generation) SELECT 'ledger', 1 FROM store_meta")
    script = _VIEWS.read_text(encoding="utf-8")
    if op.get_bind().dialect.name == "postgresql":
        checked = r"CREATE VIEW \1 WITH (security_invoker = true)"
        script = re.sub(r"^CREATE VIEW (\w+)", checked, script, flags=re.MULTILINE)
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Refused: what was answered about the ledger can be asked again for as long as the store is kept."""
    raise StoreError(
        "revision 0002 belongs to a store that holds the audit log and is never taken back; use a copy of the database instead"
    )
