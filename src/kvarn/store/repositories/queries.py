"""Queries that the repositories share, and what SQLite and PostgreSQL have and standard SQL has not."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, and_, exists, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.ids import is_id
from kvarn.store.models import Base
from kvarn.store.models.base import Owned
from kvarn.store.owner import Owner

FoundT = TypeVar("FoundT")
OwnedT = TypeVar("OwnedT", bound=Owned)


def is_owned_by(owner: Owner, model: type[OwnedT]) -> ColumnElement[bool]:
    return and_(model.organization_id == owner.organization_id, model.project_id == owner.project_id)


def owned_by(owner: Owner, model: type[OwnedT]) -> Select[OwnedT]:
    return select(model).where(is_owned_by(owner, model))


def given_values(*wanted: tuple[InstrumentedAttribute[Any], object]) -> list[ColumnElement[bool]]:
    """Conditions on columns, for each value that is given: None restricts nothing."""
    return [column == value for column, value in wanted if value is not None]


async def find_one(session: AsyncSession, query: Select[FoundT], missing: str, *, to_change: bool = False) -> FoundT:
    """The object that a query selects; with `to_change` it is locked until the transaction ends."""
    found = await session.scalar(query.with_for_update() if to_change else query)
    if found is None:
        raise NotFoundError(missing)
    return found


async def find_owned(
    session: AsyncSession, owner: Owner, model: type[OwnedT], object_id: str, *, to_change: bool = False
) -> OwnedT:
    missing = f"There is no {model.noun} {object_id[:80]!r}."
    if not is_id(object_id):
        raise NotFoundError(missing)
    return await find_one(session, owned_by(owner, model).where(model.id == object_id), missing, to_change=to_change)


async def find_owned_or_none(session: AsyncSession, owner: Owner, model: type[OwnedT], object_id: str) -> OwnedT | None:
    return await session.scalar(owned_by(owner, model).where(model.id == object_id)) if is_id(object_id) else None


async def read_owned(store: Store, owner: Owner, model: type[OwnedT], object_id: str) -> OwnedT:
    async with store.reading() as session:
        return await find_owned(session, owner, model, object_id)


async def delete_owned(store: Store, owner: Owner, model: type[OwnedT], object_id: str) -> None:
    async with store.transaction() as session:
        found = await find_owned(session, owner, model, object_id, to_change=True)
        await session.delete(found)


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
