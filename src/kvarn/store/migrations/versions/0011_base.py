"""The oldest schema that is upgraded. New databases are made from the models, at the newest (`kvarn.store.migrate`)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision: str | None = None


def downgrade() -> None:
    tables = sa.MetaData()
    tables.reflect(op.get_bind())
    tables.remove(tables.tables["alembic_version"])
    tables.drop_all(op.get_bind())
