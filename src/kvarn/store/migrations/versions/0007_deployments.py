"""Deployments and their versions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "deployments",
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("previous_version", sa.Integer(), nullable=True),
        sa.Column("replicas", sa.Integer(), nullable=True),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.String(length=256), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_deployments")),
    )
    op.create_table(
        "deployment_versions",
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(
            ["model"], ["deployments.model"], name=op.f("fk_deployment_versions_model"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("model", "version", name=op.f("pk_deployment_versions")),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("deployment_versions")
    op.drop_table("deployments")
