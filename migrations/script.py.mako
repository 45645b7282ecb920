"""${message}.

A revision is frozen once released: it names columns itself and imports nothing that changes. Views that read a table are
dropped before the table is rebuilt and made again after it, inside the revision (sqlalchemy/alembic#1207).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Apply."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Take back."""
    ${downgrades if downgrades else "pass"}
