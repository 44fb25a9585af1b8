"""Queries that the repositories share."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import ColumnElement, Select, and_, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.errors import NotFoundError
from kvarn.store.models import Batch, Conversation, File, StoredCompletion, StoredResponse
from kvarn.store.owner import Owner

FoundT = TypeVar("FoundT")
OwnedT = TypeVar("OwnedT", Batch, Conversation, File, StoredCompletion, StoredResponse)


def is_owned_by(owner: Owner, model: type[OwnedT]) -> ColumnElement[bool]:
    """Holds for the owner's objects of a kind."""
    return and_(model.organization_id == owner.organization_id, model.project_id == owner.project_id)


def owned_by(owner: Owner, model: type[OwnedT]) -> Select[OwnedT]:
    """The owner's objects of a kind."""
    return select(model).where(is_owned_by(owner, model))


async def find_one(session: AsyncSession, query: Select[FoundT], missing: str, *, to_change: bool = False) -> FoundT:
    """What a query selects; with `to_change` it is locked until the transaction ends.

    Raises:
        NotFoundError: Nothing; `missing` is the message.
    """
    found = await session.scalar(query.with_for_update() if to_change else query)
    if found is None:
        raise NotFoundError(missing)
    return found
