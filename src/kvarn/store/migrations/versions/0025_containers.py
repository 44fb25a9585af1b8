"""Containers of the code interpreter, and their files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    text, number = sa.String(length=64), sa.BigInteger()
    op.create_table(
        "containers",
        sa.Column("id", text, nullable=False),
        sa.Column("organization_id", text, nullable=False),
        sa.Column("project_id", text, nullable=False),
        sa.Column("counted_bytes", number, nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("created_at", number, nullable=False),
        sa.Column("last_active_at", number, nullable=False),
        sa.Column("expires_at", number, nullable=False),
        sa.Column("idle_s", number, nullable=False),
        sa.Column("memory_mib", number, nullable=False),
        sa.Column("interpreter_id", text, nullable=True),
        sa.ForeignKeyConstraint(["organization_id"], ["organizations.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    for columns in (("expires_at",), ("organization_id", "created_at"), ("project_id", "created_at")):
        op.create_index(f"ix_containers_{'_'.join(columns)}", "containers", list(columns))
    op.add_column("files", sa.Column("container_id", text, nullable=True))
    op.create_index("ix_files_container_id", "files", ["container_id"])


def downgrade() -> None:
    op.drop_index("ix_files_container_id", "files")
    op.drop_column("files", "container_id")
    op.drop_table("containers")
