"""The route that a request asked for, in its usage event."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("usage_events", sa.Column("route", sa.String(length=256), nullable=False, server_default=""))


def downgrade() -> None:
    """Undo."""
    op.drop_column("usage_events", "route")
