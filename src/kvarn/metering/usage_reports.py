"""Sums of the ledger for tenants: few at a time, so that the database stays available to requests."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.fairness.semaphore import FairSemaphore
from kvarn.store.engine import REPORT_CONNECTIONS, Store
from kvarn.store.ledger import UsageFilter, UsageSum
from kvarn.store.repositories.usage import sums as usage_sums


class Reports:
    """One report at a time for each organization, and one for each connection in all; the others wait. A report's time
    limit begins with its turn."""

    def __init__(self, store: Store) -> None:
        self.running = FairSemaphore(REPORT_CONNECTIONS, per_tenant=1)
        self._store = store

    async def sums(
        self, tenant: str, where: UsageFilter, *, start: int, end: int, width: int, group_by: Sequence[str]
    ) -> list[UsageSum]:
        """See `usage_sums.sums`.

        Raises:
            StoreAwayError: The database does not answer in time.
        """
        async with self.running.place(tenant):
            return await usage_sums.sums(self._store, where, start=start, end=end, width=width, group_by=group_by)
