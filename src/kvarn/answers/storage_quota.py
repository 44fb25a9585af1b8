"""Whether an organisation may store more: checked before an answer is made that would be stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kvarn.answers.errors import storage_full
from kvarn.answers.record import RequestRecord
from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError, StoreAwayError
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_organizations_over, update_balance

_WAIT_S = 1.0

_log = logging.getLogger("kvarn.answers")


class StorageQuota:
    """Refuses requests by what they bring. An answer that is being made is stored however much is stored by then, so an
    organisation may pass its quota by what the model writes, and by what other gateways admit between two sums.

    Where the database does not answer in time, the last answer holds, and what was admitted since then.
    """

    def __init__(self, store: Store, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._store = store

    async def check(self, record: RequestRecord, param: str, instead: str) -> None:
        """Admit a request whose answer will be stored with what the request brought; where nothing was stored by its
        end, it counts no longer. Raises `ApiError`: 413 that names the field `param` and what to do `instead`, such as
        "send 'store': false"."""
        organization_id, size = record.principal.organization_id, ROW_BYTES + record.body_bytes
        await self._update(organization_id, size)
        try:
            admitted = self._store.quota.admit(organization_id, size, self._store.now())
        except StorageFullError as error:
            raise storage_full(error, param, f"Or {instead}.") from None
        record.holdings.callback(self._settle, record, organization_id, size, admitted)

    def _settle(self, record: RequestRecord, organization_id: str, size: int, admitted: int) -> None:
        if not record.stored:
            self._store.quota.give_back(organization_id, size, admitted)

    async def is_full(self, organization_id: str) -> bool:
        """Whether an organisation has stored as much as it may, by an answer of the last second."""
        await self._update(organization_id, 1)
        return self._store.quota.stored(organization_id) >= self.max_bytes

    async def count_nearly_full(self, report: Callable[[int], object]) -> None:
        """Report how many organisations have stored more than four fifths of their quota."""
        report(await count_organizations_over(self._store, self.max_bytes * 4 // 5))

    async def _update(self, organization_id: str, size: int) -> None:
        try:
            async with asyncio.timeout(_WAIT_S):
                await update_balance(self._store, organization_id, size)
        except (StoreAwayError, TimeoutError) as error:
            _log.debug("stored bytes of %s cannot be read; using the last answer: %s", organization_id, error)
