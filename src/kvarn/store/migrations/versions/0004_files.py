"""Files and batches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kvarn.store.models.base import ExactJson, Json

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=True),
        sa.Column("endpoint", sa.String(length=64), nullable=False),
        sa.Column("input_file_id", sa.String(length=64), nullable=False),
        sa.Column("output_file_id", sa.String(length=64), nullable=True),
        sa.Column("error_file_id", sa.String(length=64), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("window_s", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("times", Json, nullable=False),
        sa.Column("errors", ExactJson, nullable=False),
        sa.Column("extra", ExactJson, nullable=False),
        sa.Column("output_expires_after_s", sa.BigInteger(), nullable=True),
        sa.Column("model", sa.String(length=256), nullable=True),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("completed", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("leased_by", sa.String(length=64), nullable=True),
        sa.Column("leased_until", sa.BigInteger(), nullable=True),
        sa.Column("counted_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reserved_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_batches_organization_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_batches_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index(op.f("ix_batches_created_at"), "batches", ["created_at"], unique=False)
    op.create_index("ix_batches_organization_id_created_at", "batches", ["organization_id", "created_at"], unique=False)
    op.create_index("ix_batches_project_id_created_at", "batches", ["project_id", "created_at"], unique=False)
    op.create_index(op.f("ix_batches_status"), "batches", ["status"], unique=False)

    op.create_table(
        "files",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("filename", sa.String(length=512), nullable=False),
        sa.Column("purpose", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_files_organization_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_files_project_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index(op.f("ix_files_expires_at"), "files", ["expires_at"], unique=False)
    op.create_index(op.f("ix_files_created_at"), "files", ["created_at"], unique=False)
    op.create_index("ix_files_organization_id_created_at", "files", ["organization_id", "created_at"], unique=False)
    op.create_index("ix_files_project_id_created_at", "files", ["project_id", "created_at"], unique=False)

    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("custom_id", sa.String(length=512), nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=True),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_batch_lines_batch_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("batch_id", "line", name=op.f("pk_batch_lines")),
    )
    op.create_index(
        "ix_batch_lines_open",
        "batch_lines",
        ["batch_id", "model", "line"],
        unique=False,
        postgresql_where=sa.text("failed IS NULL"),
        sqlite_where=sa.text("failed IS NULL"),
    )

    op.create_table(
        "file_chunks",
        sa.Column("file_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name=op.f("fk_file_chunks_file_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("file_id", "position", name=op.f("pk_file_chunks")),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("file_chunks")
    op.drop_index("ix_batch_lines_open", "batch_lines")

    op.drop_table("batch_lines")
    op.drop_index("ix_files_project_id_created_at", "files")
    op.drop_index("ix_files_organization_id_created_at", "files")
    op.drop_index(op.f("ix_files_created_at"), "files")
    op.drop_index(op.f("ix_files_expires_at"), "files")

    op.drop_table("files")
    op.drop_index(op.f("ix_batches_status"), "batches")
    op.drop_index("ix_batches_project_id_created_at", "batches")
    op.drop_index("ix_batches_organization_id_created_at", "batches")
    op.drop_index(op.f("ix_batches_created_at"), "batches")

    op.drop_table("batches")
