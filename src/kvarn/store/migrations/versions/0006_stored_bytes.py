"""Stored bytes of an organisation: a column of its row, not the sum of several rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("organizations", sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE organizations SET stored_bytes = (SELECT coalesce(sum(size), 0) FROM stored_bytes"
        " WHERE stored_bytes.organization_id = organizations.id)"
    )
    op.drop_table("stored_bytes")


def downgrade() -> None:
    """Undo."""
    op.create_table(
        "stored_bytes",
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_stored_bytes_organization_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("organization_id", "part", name=op.f("pk_stored_bytes")),
    )
    op.execute("INSERT INTO stored_bytes (organization_id, part, size) SELECT id, 0, stored_bytes FROM organizations")
    op.drop_column("organizations", "stored_bytes")
