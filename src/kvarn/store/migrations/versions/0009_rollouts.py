"""Rollouts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "rollouts",
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("state", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        sa.Column("command", sa.String(), nullable=True),
        sa.Column("commanded_by", sa.String(length=256), nullable=True),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_rollouts")),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("rollouts")
