"""Tools of servers as they were approved, and those that were refused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column("tool_servers", sa.Column("approved", sa.JSON(), nullable=True))
    op.add_column("tool_servers", sa.Column("refused", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("tool_servers", "refused")
    op.drop_column("tool_servers", "approved")
