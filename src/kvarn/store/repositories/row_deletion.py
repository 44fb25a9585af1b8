"""Deletion of many rows in steps of bounded size, so that other writers do not wait for long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy import ColumnElement, and_, delete, inspect, select, tuple_

from kvarn.store.engine import Store
from kvarn.store.models import Base

Condition = ColumnElement[bool]
DropRows = Callable[[Store, type[Base], Condition], Awaitable[int]]
"""Deletes the few rows for which a condition holds, with what belongs to them; how many."""


async def drop_plain(store: Store, model: type[Base], condition: Condition) -> int:
    """In one transaction; what refers to them goes by its foreign keys."""
    key = inspect(model).primary_key[0]
    async with store.transaction() as session:
        return len((await session.execute(delete(model).where(condition).returning(key))).all())


async def delete_rows(
    store: Store, model: type[Base], along: str, condition: Condition, *, at_once: int, drop: DropRows = drop_plain
) -> int:
    """Delete the rows for which a condition holds, some at a time; how many there were. They are read in the order of
    the column `along`, by an index: a step begins where the one before ended. The condition is asked again when a row
    is deleted, which may have been used meanwhile. A step that fails does not stop the next ones; the first error is
    raised at the end."""
    keys = inspect(model).primary_key
    order = list(dict.fromkeys([model.__table__.c[along], *keys]))
    query = select(*order).where(condition).order_by(*order).limit(at_once)
    total, step = 0, query
    failure: Exception | None = None
    while True:
        async with store.reading() as session:
            rows = (await session.execute(step)).all()
        if rows:
            found = [tuple(row._mapping[key] for key in keys) for row in rows]
            named = tuple_(*keys).in_(found) if len(keys) > 1 else keys[0].in_([key for (key,) in found])
            try:
                total += await drop(store, model, and_(named, condition))
            except Exception as error:
                failure = failure or error
        if len(rows) < at_once:
            if failure is not None:
                raise failure
            return total
        step = query.where(tuple_(*order) > tuple_(*rows[-1]))
