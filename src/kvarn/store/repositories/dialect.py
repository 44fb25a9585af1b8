"""Statements that SQLite and PostgreSQL share and standard SQL has not."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.models import Base


def insert(session: AsyncSession, table: type[Base]) -> postgresql.Insert:
    """An INSERT that knows `on_conflict_do_nothing` and `on_conflict_do_update`, for the session's database."""
    if session.get_bind().dialect.name == "postgresql":
        return postgresql.insert(table)
    # The two classes have these methods in common, with the same parameters.
    return sqlite.insert(table)  # type: ignore[return-value]
