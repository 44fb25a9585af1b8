"""Sessions of the console."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

_TABLE = "console_sessions"
_REFERENCES = {"organization_id": "organizations", "key_id": "api_keys", "user_id": "users"}


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("lookup", sa.String(length=32), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=True),
        sa.Column("user_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        *[
            sa.ForeignKeyConstraint([column], [f"{table}.id"], name=op.f(f"fk_{_TABLE}_{column}"), ondelete="CASCADE")
            for column, table in _REFERENCES.items()
        ],
        sa.PrimaryKeyConstraint("lookup", name=op.f(f"pk_{_TABLE}")),
    )
    for column in (*_REFERENCES, "expires_at"):
        op.create_index(op.f(f"ix_{_TABLE}_{column}"), _TABLE, [column])


def downgrade() -> None:
    op.drop_table(_TABLE)
