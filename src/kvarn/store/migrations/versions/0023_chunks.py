"""Chunks of the files in vector stores, and their vectors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.create_table(
        "chunk_stores",
        _text("store_id", 64),
        _text("organization_id", 64),
        _text("project_id", 64),
        _number("revision"),
        _text("embedder", 256),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organizations.id"],
            name=op.f("fk_chunk_stores_organization_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_chunk_stores_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("store_id", name=op.f("pk_chunk_stores")),
    )
    op.create_index("ix_chunk_stores_organization_id", "chunk_stores", ["organization_id"])
    op.create_table(
        "chunk_files",
        _text("store_id", 64),
        _text("file_id", 64),
        _text("filename", 512),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("readers", sa.JSON(), nullable=True),
        _text("version", 128),
        _text("embedder", 256),
        _number("revision"),
        _number("generation"),
        _number("chunks"),
        sa.ForeignKeyConstraint(
            ["store_id"], ["chunk_stores.store_id"], name=op.f("fk_chunk_files_store_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("store_id", "file_id", name=op.f("pk_chunk_files")),
    )
    op.create_table(
        "chunks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        _text("store_id", 64),
        _text("file_id", 64),
        *[_number(name) for name in ("generation", "ordinal", "start", "end", "tokens")],
        sa.Column("section", sa.LargeBinary(), nullable=False),
        sa.Column("page", sa.BigInteger(), nullable=True),
        sa.Column("text", sa.LargeBinary(), nullable=False),
        sa.Column("words", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
    )
    op.create_index(
        "ix_chunks_store_id_file_id_generation_ordinal", "chunks", ["store_id", "file_id", "generation", "ordinal"]
    )
    op.create_table(
        "chunk_vectors",
        _number("chunk_id"),
        _text("embedder", 256),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunks.id"], name=op.f("fk_chunk_vectors_chunk_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("chunk_id", "embedder", name=op.f("pk_chunk_vectors")),
    )


def downgrade() -> None:
    for table in ("chunk_vectors", "chunks", "chunk_files", "chunk_stores"):
        op.drop_table(table)


def _text(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=length), nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)
