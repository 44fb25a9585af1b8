"""One revision for the keys of all organisations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.execute("DELETE FROM revisions WHERE holder <> 'newest'")
    op.drop_index(op.f("ix_revisions_number"), "revisions")
    op.execute("ALTER TABLE revisions RENAME COLUMN holder TO name")
    op.drop_table("act_numbers")


def downgrade() -> None:
    """Undo."""
    op.create_table(
        "act_numbers",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_act_numbers")),
    )
    op.execute("ALTER TABLE revisions RENAME COLUMN name TO holder")
    op.create_index(op.f("ix_revisions_number"), "revisions", ["number"], unique=False)
