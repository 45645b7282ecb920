"""Where a store that follows Kafka stands in each topic.

Frozen: it names every column itself, written as in revision 0001. No view shows it; what a projector is behind is a metric.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sickbay.errors import StoreError

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _number() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table; a store that follows no topic has no row in it."""
    op.create_table(
        "source_position",
        sa.Column("topic", _text(), nullable=False),
        sa.Column("partition_number", _number(), nullable=False, autoincrement=False),
        sa.Column("topic_identity", _text(), nullable=False),
        sa.Column("next_offset", _number(), nullable=False, autoincrement=False),
        sa.PrimaryKeyConstraint("topic", "partition_number", name="pk_source_position"),
        sa.CheckConstraint("next_offset >= 0", name=op.f("ck_source_position_offset_counts")),
        sqlite_strict=True,
    )


def downgrade() -> None:
    """Refused: without its positions a store would take in again what it holds."""
    raise StoreError(
        "revision 0003 belongs to a store that holds the audit log and is never taken back; use a copy of the database instead"
    )
