"""Adapters that were loaded at run time, and digests of the files that a version was deployed with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    """Apply."""
    op.add_column("deployments", sa.Column("adapters", _JSON, nullable=True))
    op.add_column("deployment_versions", sa.Column("fingerprints", _JSON, nullable=True))


def downgrade() -> None:
    """Undo."""
    op.drop_column("deployment_versions", "fingerprints")
    op.drop_column("deployments", "adapters")
