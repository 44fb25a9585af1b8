"""Statements that SQLite and PostgreSQL share and standard SQL has not."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, exists, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from kvarn.store.models import Base


def is_postgresql(session: AsyncSession) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def insert(session: AsyncSession, table: type[Base]) -> postgresql.Insert:
    """An INSERT that knows `on_conflict_do_nothing` and `on_conflict_do_update`, for the session's database."""
    if is_postgresql(session):
        return postgresql.insert(table)
    # The two classes have these methods in common, with the same parameters.
    return sqlite.insert(table)  # type: ignore[return-value]


def has_entry(
    session: AsyncSession, column: InstrumentedAttribute[dict[str, Any]], key: str, value: str
) -> ColumnElement[bool]:
    """Whether a column's JSON object holds this text under this key, whatever characters the key is made of."""
    split = func.jsonb_each_text if is_postgresql(session) else func.json_each
    entries = split(column).table_valued("key", "value")
    return exists().select_from(entries).where(entries.c.key == key, entries.c.value == value)
