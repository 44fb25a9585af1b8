"""Rollouts of a deployment's versions, and what gateway processes that do not judge have seen of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("rollouts", sa.Column("candidate_version", sa.Integer(), nullable=True))
    op.add_column("rollouts", sa.Column("candidate_share", sa.Double(), nullable=True))
    op.create_table(
        "rollout_samples",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("began", sa.Double(), nullable=False),
        sa.Column("samples", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout_samples")),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("rollout_samples")
    op.drop_column("rollouts", "candidate_share")
    op.drop_column("rollouts", "candidate_version")
