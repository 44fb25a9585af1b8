"""Stored bytes: exact for files, a periodic sum for the rest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_SUMMED = ("conversations", "responses", "stored_completions", "prompt_samples")


def upgrade() -> None:
    for name in ("file_bytes", "other_bytes", "summed_at"):
        op.add_column("organizations", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE organizations SET file_bytes = (SELECT coalesce(sum(size + 1024), 0) FROM files"
        " WHERE files.organization_id = organizations.id AND files.counted)"
    )
    op.execute("UPDATE organizations SET other_bytes = stored_bytes - file_bytes WHERE stored_bytes > file_bytes")
    op.drop_column("organizations", "stored_bytes")
    op.drop_column("batches", "reserved_bytes")
    for table in _SUMMED:  # sums read the index alone, however large the rows are
        op.create_index(f"ix_{table}_organization_id_counted_bytes", table, ["organization_id", "counted_bytes"])


def downgrade() -> None:
    for table in _SUMMED:
        op.drop_index(f"ix_{table}_organization_id_counted_bytes", table)
    op.add_column("batches", sa.Column("reserved_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("organizations", sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute("UPDATE organizations SET stored_bytes = file_bytes + other_bytes")
    for name in ("file_bytes", "other_bytes", "summed_at"):
        op.drop_column("organizations", name)
