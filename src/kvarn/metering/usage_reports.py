"""Sums of the ledger for tenants: few at a time, so that the database is there for everybody's requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakValueDictionary

from kvarn.store.engine import REPORT_CONNECTIONS, Store
from kvarn.store.ledger import UsageFilter, UsageSum
from kvarn.store.repositories.usage import sums as usage_sums


class Reports:
    """One report at a time for each organisation, and as many together as there are connections for them; the others
    wait, first come, first served. What a report may take is counted from its turn on.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connections = asyncio.Semaphore(REPORT_CONNECTIONS)
        self._own = WeakValueDictionary[str, asyncio.Lock]()
        """An organisation's; gone when nobody holds it or waits for it."""

    async def sums(
        self, tenant: str, where: UsageFilter, *, start: int, end: int, width: int, group_by: Sequence[str]
    ) -> list[UsageSum]:
        """See `usage_sums.sums`.

        Raises:
            StoreAwayError: The database does not answer in time.
        """
        own = self._own.setdefault(tenant, asyncio.Lock())
        async with own, self._connections:
            return await usage_sums.sums(self._store, where, start=start, end=end, width=width, group_by=group_by)
