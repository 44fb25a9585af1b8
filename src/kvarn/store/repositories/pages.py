"""Pages of a list: in the order of a key that never changes, from behind (or before) one of the list's own objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from kvarn.store.errors import NotFoundError

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Cursor:
    limit: int = 20
    after: str | None = None
    """Id of the object behind which the page begins."""
    before: str | None = None
    """Id of the object before which the page ends. Not both."""
    ascending: bool = False


@dataclass(frozen=True)
class Page(Generic[ItemT]):
    items: list[ItemT]
    has_more: bool
    """Whether there are more in the direction in which one reads: behind the page, or before it for `before`."""


async def read_page(
    session: AsyncSession,
    query: Select[ItemT],
    cursor: Cursor,
    keys: Sequence[InstrumentedAttribute[Any]],
) -> Page[ItemT]:
    """A page of what `query` selects, which is bound to its owner and has no order. The cursor's ids are looked for in
    `query` alone. `keys`: columns that order the list and never change, such as `(File.created_at, File.id)`; the last
    is the id."""
    backwards = cursor.before is not None
    ascending = cursor.ascending != backwards
    anchor = cursor.before if backwards else cursor.after
    if anchor is not None:
        found_at = query.with_only_columns(*keys, maintain_column_froms=True).where(keys[-1] == anchor)
        position = (await session.execute(found_at)).first()
        if position is None:
            raise _unknown(anchor)
        behind = tuple_(*keys) > tuple_(*position) if ascending else tuple_(*keys) < tuple_(*position)
        query = query.where(behind)
    query = query.order_by(*[key.asc() if ascending else key.desc() for key in keys]).limit(cursor.limit + 1)
    found = list(await session.scalars(query))
    items = found[: cursor.limit]
    return Page(items[::-1] if backwards else items, len(found) > cursor.limit)


def cut_page(items: Sequence[ItemT], cursor: Cursor, id_of: Callable[[ItemT], str]) -> Page[ItemT]:
    """A page of a list that is in memory, oldest object first. Raises as `read_page` does."""
    ordered = list(items if cursor.ascending else reversed(items))
    start, end = 0, len(ordered)
    if cursor.before is not None:
        end = _index(ordered, cursor.before, id_of)
        start = max(0, end - cursor.limit)
        return Page(ordered[start:end], start > 0)
    if cursor.after is not None:
        start = _index(ordered, cursor.after, id_of) + 1
    end = min(end, start + cursor.limit)
    return Page(ordered[start:end], end < len(ordered))


def _index(items: Sequence[ItemT], anchor: str, id_of: Callable[[ItemT], str]) -> int:
    for index, item in enumerate(items):
        if id_of(item) == anchor:
            return index
    raise _unknown(anchor)


def _unknown(anchor: str) -> NotFoundError:
    return NotFoundError(f"The list holds no object {anchor[:80]!r} to go on from.")
