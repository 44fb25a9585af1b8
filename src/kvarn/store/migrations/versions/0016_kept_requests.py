"""Requests that are over and are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

_INDEXES = (
    ("request_id",),
    ("started_us",),
    ("total_us",),
    ("organization_id", "started_us"),
    ("organization_id", "total_us"),
    ("organization_id", "kept_bytes"),
    ("organization_id", "reason", "started_us"),
    ("organization_id", "model", "started_us"),
    ("project_id", "started_us"),
    ("project_id", "total_us"),
    ("model", "started_us"),
    ("model", "total_us"),
    ("model", "input_tokens", "output_tokens"),
    ("key_id", "started_us"),
    ("session", "started_us"),
    ("end_user", "started_us"),
    ("reason", "started_us"),
    ("endpoint", "started_us"),
    ("model_version", "started_us"),
)


def _by_bytes() -> sa.types.TypeEngine[str]:
    return sa.String(length=128).with_variant(sa.String(length=128, collation="C"), "postgresql")


def _text(name: str, length: int, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=length), nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def upgrade() -> None:
    table = "kept_requests"
    op.create_table(
        table,
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", _by_bytes(), nullable=False),
        sa.Column("request_id", _by_bytes(), nullable=False),
        _text("organization_id", 64),
        _text("project_id", 64),
        _text("key_id", 64, nullable=True),
        _text("session", 256, nullable=True),
        _text("end_user", 256, nullable=True),
        _text("batch_id", 64, nullable=True),
        *(_text(name, 256) for name in ("model", "model_version", "adapter", "replica", "endpoint")),
        sa.Column("status", sa.Integer(), nullable=False),
        _text("outcome", 16),
        _text("error_code", 64),
        _text("reason", 16),
        _number("started_us"),
        _number("total_us"),
        _number("ttft_us", nullable=True),
        *(_number(name) for name in ("input_tokens", "cached_tokens", "output_tokens", "cost", "kept_bytes")),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f(f"fk_{table}_organization_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f(f"fk_{table}_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", name=op.f(f"pk_{table}")),
        sa.UniqueConstraint("id", name=op.f(f"uq_{table}_id")),
    )
    for columns in _INDEXES:
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))
    op.create_table(
        "kept_details",
        sa.Column("id", _by_bytes(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["id"], ["kept_requests.id"], name=op.f("fk_kept_details_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kept_details")),
    )


def downgrade() -> None:
    op.drop_table("kept_details")
    op.drop_table("kept_requests")
