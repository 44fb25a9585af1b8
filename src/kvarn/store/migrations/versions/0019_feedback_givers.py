"""Feedback knows who gave it; usage events are found by each id that is not made of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

_INDEX = "ix_usage_events_named"
_BEFORE = sa.text("request_id NOT LIKE 'req-%'")
_NAMED = sa.text("request_id <> 'req-' || substr(id, 5, 32)")


def upgrade() -> None:
    _index(_NAMED)
    op.add_column("feedback", sa.Column("given_by", sa.String(length=64), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("feedback", "given_by")
    _index(_BEFORE)


def _index(named: sa.TextClause) -> None:
    op.drop_index(_INDEX, "usage_events")
    op.create_index(_INDEX, "usage_events", ["request_id"], postgresql_where=named, sqlite_where=named)
