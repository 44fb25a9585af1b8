"""Files that come in parts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("filename", sa.String(length=512), nullable=False),
        sa.Column("purpose", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("file_expires_after_s", sa.BigInteger(), nullable=True),
        sa.Column("counted_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_uploads_organization_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_uploads_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index(op.f("ix_uploads_created_at"), "uploads", ["created_at"])
    op.create_index(op.f("ix_uploads_expires_at"), "uploads", ["expires_at"])
    op.create_index("ix_uploads_organization_id_created_at", "uploads", ["organization_id", "created_at"])
    op.add_column("files", sa.Column("upload_id", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_files_upload_id"), "files", ["upload_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_files_upload_id"), "files")
    op.drop_column("files", "upload_id")
    op.drop_table("uploads")
