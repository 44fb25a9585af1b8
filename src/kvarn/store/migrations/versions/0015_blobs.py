"""Contents of files may lie outside the database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("files", sa.Column("in_blobs", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    if op.get_bind().scalar(sa.text("SELECT count(*) FROM files WHERE in_blobs")):
        raise CommandError("contents of files lie outside the database (store.blobs): delete those files first")
    op.drop_column("files", "in_blobs")
