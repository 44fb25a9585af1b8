"""Tables of sums: a row for each value of their primary key, to which events are added as they come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.ledger import LedgerEvent
from kvarn.store.models import Base
from kvarn.store.repositories.queries import insert

Key = tuple[int | str, ...]
"""Values of a table's primary key, in its columns' order."""
Amounts = tuple[int, ...]
"""Amounts that are added to its other columns, in their order."""


async def add(session: AsyncSession, table: type[Base], amounts: Iterable[tuple[Key, Amounts]]) -> None:
    """Add amounts to the rows of a table of sums, in the session's transaction; makes the rows that are missing."""
    columns = inspect(table).columns
    keys = [column.name for column in columns if column.primary_key]
    sums = [column.name for column in columns if not column.primary_key]
    rows: defaultdict[Key, list[int]] = defaultdict(lambda: [0] * len(sums))
    for key, each in amounts:
        row = rows[key]
        for position, amount in enumerate(each):
            row[position] += amount
    if not rows:
        return
    # Sorted: two writers that touch the same rows lock them in the same order.
    values = [dict(zip((*keys, *sums), (*key, *row), strict=True)) for key, row in sorted(rows.items())]
    statement = insert(session, table)
    added = {name: getattr(table, name) + getattr(statement.excluded, name) for name in sums}
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=added), values)


def by(key: Callable[[LedgerEvent], Key], events: Iterable[LedgerEvent]) -> Iterable[tuple[Key, Amounts]]:
    """Events as amounts of a table that counts requests, input, cached and output tokens, and cost."""
    for event in events:
        yield key(event), (1, event.input_tokens, event.cached_tokens, event.output_tokens, event.cost)
