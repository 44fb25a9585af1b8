"""Deleting many rows, in steps that each take a short time, so that nobody who writes meanwhile waits for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Delete, delete, inspect, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.models import Base, Batch, File
from kvarn.store.repositories.batches.lines import delete_lines
from kvarn.store.repositories.files.files import INCOMPLETE, drop_file
from kvarn.store.repositories.stored_bytes import count_bytes

Condition = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Rows of a table that are to go."""

    model: type[Base]
    along: str
    """Column in whose order they are read. There is an index that ends with it, behind what `whose` compares: a step
    begins where the one before ended, however many rows are gone by then, and no look reads what stays."""
    whose: Condition | None = None
    """Compares a column that never changes with one value."""
    still: Condition | None = None
    """Asked again when a row is deleted: one that was used a moment ago is not old any more."""


DeleteRows = Callable[[Store, RowSelection, Sequence[tuple[Any, ...]]], Awaitable[int]]
"""Deletes the rows of these primary keys that are still to go, with what belongs to them; how many."""


async def delete_plain(store: Store, selection: RowSelection, keys: Sequence[tuple[Any, ...]]) -> int:
    """Delete them in one transaction; what refers to them goes by its foreign keys."""
    key = inspect(selection.model).primary_key[0]
    async with store.transaction() as session:
        return len((await session.execute(_delete_statement(selection, keys).returning(key))).all())


async def delete_counted(store: Store, selection: RowSelection, keys: Sequence[tuple[Any, ...]]) -> int:
    """As `delete_plain`, of what counts in its organisation's stored bytes, with what refers to it."""
    async with store.transaction() as session:
        return await _delete_counted(session, selection.model, _delete_statement(selection, keys))


async def drop_files(store: Store, selection: RowSelection, keys: Sequence[tuple[Any, ...]]) -> int:
    """Hide them first, for nobody shall read half a file; then their content goes, a part at a time."""
    conditions: list[Condition] = [File.id.in_([key[0] for key in keys])]
    if selection.still is not None:
        conditions.append(selection.still)
    async with store.transaction() as session:
        hidden = update(File).where(*conditions).values(status=INCOMPLETE, expires_at=0)
        found = list(await session.scalars(hidden.returning(File.id)))
    for file_id in found:
        await drop_file(store, file_id)
    return len(found)


async def drop_batches(store: Store, _: RowSelection, keys: Sequence[tuple[Any, ...]]) -> int:
    """Their lines first, a part at a time. Those that are over stay so: nothing is asked again."""
    for (batch_id,) in keys:
        await delete_lines(store, batch_id)
        async with store.transaction() as session:
            await _delete_counted(session, Batch, delete(Batch).where(Batch.id == batch_id))
    return len(keys)


async def _delete_counted(session: AsyncSession, model: type[Base], deletion: Delete) -> int:
    columns = model.__table__.c
    gone = await session.execute(deletion.returning(columns.organization_id, columns.counted_bytes))
    rows, freed = gone.all(), Counter[str]()
    for organization_id, size in rows:
        freed[organization_id] += size
    for organization_id in sorted(freed):  # in this order for all: two of them never wait for each other
        await count_bytes(session, organization_id, -freed[organization_id])
    return len(rows)


def _delete_statement(selection: RowSelection, keys: Sequence[tuple[Any, ...]]) -> Delete:
    columns = inspect(selection.model).primary_key
    named = columns[0].in_([key[0] for key in keys]) if len(columns) == 1 else tuple_(*columns).in_(keys)
    return delete(selection.model).where(*[named] if selection.still is None else [named, selection.still])


async def delete_rows(store: Store, selection: RowSelection, *, at_once: int, drop: DeleteRows = delete_plain) -> int:
    """Delete rows, `at_once` of them in a step; how many there were.

    Raises:
        StoreAwayError: The database does not answer. What was deleted until then stays so.
    """
    keys = inspect(selection.model).primary_key
    order = list(dict.fromkeys([selection.model.__table__.c[selection.along], *keys]))
    wanted = [condition for condition in (selection.whose, selection.still) if condition is not None]
    query = select(*order).where(*wanted).order_by(*order).limit(at_once)
    places = [order.index(key) for key in keys]
    total, step = 0, query
    while True:
        async with store.reading() as session:
            rows = (await session.execute(step)).all()
        if rows:
            total += await drop(store, selection, [tuple(row[place] for place in places) for row in rows])
        if len(rows) < at_once:
            return total
        step = query.where(tuple_(*order) > tuple_(*rows[-1]))
