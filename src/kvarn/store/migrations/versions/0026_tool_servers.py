"""Servers whose tools the models of a project may use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"

_TABLE = "tool_servers"
_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("url", sa.String(length=2048), nullable=True),
        sa.Column("description", sa.String(length=1024), nullable=False),
        sa.Column("document", sa.JSON(), nullable=True),
        sa.Column("sealed_headers", sa.LargeBinary(), nullable=True),
        sa.Column("header_names", _JSON, nullable=False),
        sa.Column("allowed_tools", _JSON, nullable=True),
        sa.Column("require_approval", sa.String(length=16), nullable=True),
        sa.Column("timeout_s", sa.Double(), nullable=False),
        sa.Column("pinned", _JSON, nullable=False),
        sa.Column("waiting", _JSON, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        *[
            sa.ForeignKeyConstraint([column], [f"{table}.id"], name=op.f(f"fk_{_TABLE}_{column}"), ondelete="CASCADE")
            for column, table in (("organization_id", "organizations"), ("project_id", "projects"))
        ],
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_TABLE}")),
        sa.UniqueConstraint("project_id", "name", name=op.f(f"uq_{_TABLE}_project_id_name")),
    )
    op.create_index(op.f(f"ix_{_TABLE}_organization_id"), _TABLE, ["organization_id"])


def downgrade() -> None:
    op.drop_table(_TABLE)
