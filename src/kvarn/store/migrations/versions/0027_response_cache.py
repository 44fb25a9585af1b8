"""Response caches: which one a project has, and which one answered a request."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("projects", sa.Column("response_cache", sa.String(length=16), nullable=True))
    op.add_column("usage_events", sa.Column("cache", sa.String(length=16), nullable=True))


def downgrade() -> None:
    op.drop_column("usage_events", "cache")
    op.drop_column("projects", "response_cache")
