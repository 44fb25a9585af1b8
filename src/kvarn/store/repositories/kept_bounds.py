"""Bound of what is kept of requests: those that keep most lose the oldest first, ordinary ones before the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import delete, func, select

from kvarn.store.engine import Store
from kvarn.store.models import KeptRequest

_AT_ONCE = 200
"""Deleted in one transaction."""
_LEAVING: Final = ("ordinary", "refused", "slow", "error")
"""Reasons to be kept, those first that go first."""


async def bound_kept(store: Store, max_rows: int, max_bytes: int) -> int:
    """Delete as many as are too many; how many."""
    sums = select(KeptRequest.organization_id, func.count(), func.sum(KeptRequest.kept_bytes))
    async with store.reporting() as session:
        held = [
            (organization_id, int(rows), int(size))
            for organization_id, rows, size in await session.execute(sums.group_by(KeptRequest.organization_id))
        ]
    rows_each = fair_share((rows for _, rows, _ in held), max_rows)
    bytes_each = fair_share((size for _, _, size in held), max_bytes)
    deleted = 0
    for organization_id, rows, size in held:
        deleted += await _drop_oldest(store, organization_id, rows - rows_each, size - bytes_each)
    return deleted


def fair_share(held: Iterable[int], total: int) -> int:
    """The most that each may hold so that together they hold no more than `total`: who holds less loses nothing."""
    ascending, left = sorted(held), total
    for place, each in enumerate(ascending):
        share = left // (len(ascending) - place)
        if each > share:
            return share
        left -= each
    return total


async def _drop_oldest(store: Store, organization_id: str, rows: int, size: int) -> int:
    """Delete at least so many rows and bytes of an organisation; how many rows."""
    deleted = 0
    for reason in _LEAVING:
        oldest = (
            select(KeptRequest.number, KeptRequest.kept_bytes)
            .where(KeptRequest.organization_id == organization_id, KeptRequest.reason == reason)
            .order_by(KeptRequest.started_us)
            .limit(_AT_ONCE)
        )
        found = _AT_ONCE
        while (rows > 0 or size > 0) and found == _AT_ONCE:
            async with store.transaction() as session:
                some = (await session.execute(oldest)).all()
                found = len(some)
                leaving: list[int] = []
                for number, each in some:
                    if rows <= 0 and size <= 0:
                        break
                    leaving.append(number)
                    rows, size = rows - 1, size - each
                await session.execute(delete(KeptRequest).where(KeptRequest.number.in_(leaving)))
            deleted += len(leaving)
    return deleted
