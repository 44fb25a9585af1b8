"""Vector stores; projects give up their cached prompts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

_STORES, _FILES, _BATCHES = "vector_stores", "vector_store_files", "vector_store_file_batches"
_OPEN = sa.text("status = 'in_progress' OR stale")


def upgrade() -> None:
    op.add_column("projects", sa.Column("cache_generation", sa.BigInteger(), nullable=True))
    op.create_table(
        _STORES,
        *_owned(_STORES),
        _number("counted_bytes"),
        _text("name", 256),
        _text("description", 512),
        sa.Column("extra", sa.JSON(), nullable=False),
        _number("created_at"),
        _number("last_active_at"),
        _number("expires_after_days", nullable=True),
        _number("expires_at", nullable=True),
        sa.Column("hidden", sa.Boolean(), nullable=False),
        _text("embedding_model", 256, nullable=True),
    )
    op.create_index(op.f("ix_vector_stores_last_active_at"), _STORES, ["last_active_at"])
    op.create_index(op.f("ix_vector_stores_expires_at"), _STORES, ["expires_at"])
    op.create_index("ix_vector_stores_project_id_created_at", _STORES, ["project_id", "created_at"])
    for column in ("last_active_at", "counted_bytes"):
        op.create_index(f"ix_vector_stores_organization_id_{column}", _STORES, ["organization_id", column])
    _add_files()
    op.create_table(_BATCHES, *_owned(_BATCHES), *_of_store(_BATCHES), _number("created_at"), _flag("cancelled"))
    op.create_index(op.f("ix_vector_store_file_batches_store_id"), _BATCHES, ["store_id"])


def downgrade() -> None:
    for table in (_BATCHES, _FILES, _STORES):
        op.drop_table(table)
    op.drop_column("projects", "cache_generation")


def _add_files() -> None:
    op.create_table(
        _FILES,
        *_of_store(_FILES),
        _text("file_id", 64),
        _text("batch_id", 64, nullable=True),
        _text("filename", 512),
        _number("created_at"),
        _number("expires_at", nullable=True),
        _text("status", 16),
        _text("error_code", 32, nullable=True),
        _text("error_message", 512, nullable=True),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("readers", sa.JSON(), nullable=True),
        *[_number(name) for name in ("max_tokens", "overlap_tokens", "usage_bytes")],
        _text("version", 64),
        _text("embedder", 256),
        _flag("stale"),
        _number("quoted_at", nullable=True),
        sa.Column("progress", sa.Double(), nullable=False),
        _number("attempts"),
        _text("leased_by", 64, nullable=True),
        _number("leased_until", nullable=True),
        sa.PrimaryKeyConstraint("store_id", "file_id", name=op.f("pk_vector_store_files")),
    )
    op.create_index("ix_vector_store_files_store_id_created_at", _FILES, ["store_id", "created_at"])
    for column in ("file_id", "batch_id", "expires_at"):
        op.create_index(op.f(f"ix_vector_store_files_{column}"), _FILES, [column])
    op.create_index("ix_vector_store_files_open", _FILES, ["created_at"], postgresql_where=_OPEN, sqlite_where=_OPEN)


def _owned(table: str) -> list[sa.schema.SchemaItem]:
    keys = [
        sa.ForeignKeyConstraint([f"{name}_id"], [f"{name}s.id"], name=op.f(f"fk_{table}_{name}_id"), ondelete="CASCADE")
        for name in ("organization", "project")
    ]
    ids = [_text(name, 64) for name in ("id", "organization_id", "project_id")]
    return [*ids, *keys, sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}"))]


def _of_store(table: str) -> list[sa.schema.SchemaItem]:
    name = op.f(f"fk_{table}_store_id")
    return [
        _text("store_id", 64),
        sa.ForeignKeyConstraint(["store_id"], [f"{_STORES}.id"], name=name, ondelete="CASCADE"),
    ]


def _text(name: str, length: int, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=length), nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False)
