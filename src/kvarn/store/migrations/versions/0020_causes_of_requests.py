"""Kept requests have their largest cause."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("kept_requests", sa.Column("cause", sa.String(length=32), nullable=False, server_default=""))
    op.add_column("kept_requests", sa.Column("cause_us", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("kept_requests", "cause_us")
    op.drop_column("kept_requests", "cause")
