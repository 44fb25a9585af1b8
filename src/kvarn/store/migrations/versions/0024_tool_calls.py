"""Calls of tools that the platform runs, and which tools a project may use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    text, number = sa.String(length=64), sa.BigInteger()
    op.create_table(
        "tool_calls",
        sa.Column("id", text, nullable=False),
        sa.Column("organization_id", text, nullable=False),
        sa.Column("project_id", text, nullable=False),
        sa.Column("answer_id", text, nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("approval_request_id", text, nullable=True),
        sa.Column("key_id", text, nullable=True),
        sa.Column("type", text, nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("arguments", text, nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", number, nullable=False),
        sa.Column("duration_ms", number, nullable=True),
        sa.Column("result_bytes", number, nullable=True),
        sa.Column("error", sa.String(length=1024), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["organization_id"], ["organizations.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint(
            "project_id", "approval_request_id", name=op.f("uq_tool_calls_project_id_approval_request_id")
        ),
    )
    for columns in (("answer_id",), ("created_at",), ("organization_id", "created_at"), ("project_id", "created_at")):
        op.create_index(f"ix_tool_calls_{'_'.join(columns)}", "tool_calls", list(columns))
    op.add_column("projects", sa.Column("tools", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=True))


def downgrade() -> None:
    op.drop_column("projects", "tools")
    op.drop_table("tool_calls")
