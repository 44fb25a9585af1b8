"""Deleting many rows, in steps that each take a short time, so that nobody who writes meanwhile waits for long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, inspect, select, tuple_, update

from kvarn.store.engine import Store
from kvarn.store.models import Base, Batch, File
from kvarn.store.repositories.batch_lines import delete_lines
from kvarn.store.repositories.files import INCOMPLETE, drop_file

Condition = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Doomed:
    """Rows of a table that are to go."""

    model: type[Base]
    along: str
    """Column in whose order they are read. There is an index that ends with it, behind what `whose` compares: a step
    begins where the one before ended, however many rows are gone by then, and no look reads what stays."""
    whose: Condition | None = None
    """Compares a column that never changes with one value."""
    still: Condition | None = None
    """Asked again when a row is deleted: one that was used a moment ago is not old any more."""


Drop = Callable[[Store, Doomed, Sequence[tuple[Any, ...]]], Awaitable[int]]
"""Deletes the rows of these primary keys that are still to go, with what belongs to them; how many."""


async def drop_rows(store: Store, doomed: Doomed, keys: Sequence[tuple[Any, ...]]) -> int:
    """Delete them in one transaction; what refers to them goes by its foreign keys."""
    columns = inspect(doomed.model).primary_key
    named = columns[0].in_([key[0] for key in keys]) if len(columns) == 1 else tuple_(*columns).in_(keys)
    conditions: list[Condition] = [named] if doomed.still is None else [named, doomed.still]
    async with store.transaction() as session:
        gone = await session.execute(delete(doomed.model).where(*conditions).returning(columns[0]))
        return len(gone.all())


async def drop_files(store: Store, doomed: Doomed, keys: Sequence[tuple[Any, ...]]) -> int:
    """Hide them first, for nobody shall read half a file; then their content goes, a part at a time."""
    conditions: list[Condition] = [File.id.in_([key[0] for key in keys])]
    if doomed.still is not None:
        conditions.append(doomed.still)
    async with store.transaction() as session:
        hidden = update(File).where(*conditions).values(status=INCOMPLETE, expires_at=0)
        found = list(await session.scalars(hidden.returning(File.id)))
    for file_id in found:
        await drop_file(store, file_id)
    return len(found)


async def drop_batches(store: Store, _: Doomed, keys: Sequence[tuple[Any, ...]]) -> int:
    """Their lines first, a part at a time. Those that are over stay so: nothing is asked again."""
    for (batch_id,) in keys:
        await delete_lines(store, batch_id)
        async with store.transaction() as session:
            await session.execute(delete(Batch).where(Batch.id == batch_id))
    return len(keys)


async def delete_rows(store: Store, doomed: Doomed, *, at_once: int, drop: Drop = drop_rows) -> int:
    """Delete rows, `at_once` of them in a step; how many there were.

    Raises:
        StoreAwayError: The database does not answer. What was deleted until then stays so.
    """
    keys = inspect(doomed.model).primary_key
    order = list(dict.fromkeys([doomed.model.__table__.c[doomed.along], *keys]))
    wanted = [condition for condition in (doomed.whose, doomed.still) if condition is not None]
    query = select(*order).where(*wanted).order_by(*order).limit(at_once)
    places = [order.index(key) for key in keys]
    total, step = 0, query
    while True:
        async with store.reading() as session:
            rows = (await session.execute(step)).all()
        if rows:
            total += await drop(store, doomed, [tuple(row[place] for place in places) for row in rows])
        if len(rows) < at_once:
            return total
        step = query.where(tuple_(*order) > tuple_(*rows[-1]))
