"""The version says which older releases serve on the schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("alembic_version", sa.Column("compatible_since", sa.String(length=32), nullable=True))


def downgrade() -> None:
    op.drop_column("alembic_version", "compatible_since")
