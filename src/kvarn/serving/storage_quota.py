"""Whether an organisation may store more: checked before an answer is made that would be stored."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvarn.serving.errors import storage_full
from kvarn.serving.record import RequestRecord
from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError, StoreAwayError
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_organizations_over, read_stored_bytes

_VALID_S = 1.0
"""Seconds for which an answer is believed that says that there is space."""
_WAIT_S = 1.0
"""Seconds that a request waits for the database's answer."""
_MAX_ORGANIZATIONS = 10_000
_WATCH_S = 60.0

_log = logging.getLogger("kvarn.gateway")


@dataclass(slots=True)
class _Usage:
    """What is known of an organisation.

    stored                       admitted
    ├── of the latest answer ──┼── begun here and not in that answer: running, or finished since it was asked for ──┤
    """

    stored: int | None = None
    """Bytes, by the latest answer; None where the database is away, or never answered."""
    admitted: int = 0
    """Bytes that requests brought which are not in `stored` yet, or may not be."""
    finished: int = 0
    """Those of `admitted` whose requests are over: the next answer has them."""
    valid_until: float = -math.inf
    """Not asked before, where there is space. Monotonic seconds."""
    query: asyncio.Task[None] | None = None

    def would_exceed(self, size: int, max_bytes: int) -> bool:
        """Whether so many bytes do not fit, as far as is known."""
        return self.stored is not None and self.stored + self.admitted + size > max_bytes


@dataclass(slots=True)
class _Admitted:
    """A request that was admitted; see `RequestRecord.held`."""

    usage: _Usage
    size: int

    def give_back(self) -> None:
        """It is over: the database knows what it stored."""
        self.usage.finished += self.size


class StorageQuota:
    """Knows whether organisations may store more, by one query a second and organisation, whose answer all who wait for
    it share.

    An answer that is being made is stored however much is stored by then: requests are refused before, by what they
    bring. So an organisation may pass its quota by what the model writes, and by what other gateways admit in the same
    second.

    The queries have connections that no writer takes (`Store.reporting`). Where they are not answered in time, the last
    answer holds, and what was admitted since then: keeping the database busy is no way around the quota. Only while the
    database is away nothing is known, and nothing is refused.

    Args:
        store: The database.
        max_bytes: Bytes that an organisation may store.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self._store = store
        self._clock = clock
        self._usages: dict[str, _Usage] = {}

    async def check(self, record: RequestRecord, param: str, instead: str) -> None:
        """Admit a request whose answer will be stored with what the request brought.

        Args:
            record: The request; its bytes count as stored until it is closed and the database was asked again.
            param: The field of the request that has it kept.
            instead: What the client may ask for instead, such as "send 'store': false".

        Raises:
            ApiError: 413, it would not fit.
        """
        usage, size = self._usage_of(record.principal.organization_id), ROW_BYTES + record.body_bytes
        if self._clock() >= usage.valid_until or usage.would_exceed(size, self.max_bytes):
            await self._refresh(record.principal.organization_id, usage)
        if usage.would_exceed(size, self.max_bytes):
            stored = (usage.stored or 0) + usage.admitted
            raise storage_full(StorageFullError(stored, self.max_bytes, size), param, f"Or {instead}.")
        usage.admitted += size
        record.held.append(_Admitted(usage, size))

    async def is_full(self, organization_id: str) -> bool:
        """Whether an organisation has stored as much as it may, by an answer of the last second."""
        usage = self._usage_of(organization_id)
        if self._clock() >= usage.valid_until or usage.would_exceed(1, self.max_bytes):
            await self._refresh(organization_id, usage)
        return usage.stored is not None and usage.stored >= self.max_bytes

    async def watch(self, set_nearly_full: Callable[[int], object]) -> None:
        """Count once a minute the organisations that have stored more than four fifths of their quota."""
        while True:
            try:
                set_nearly_full(await count_organizations_over(self._store, self.max_bytes * 4 // 5))
            except StoreAwayError as error:
                _log.warning("how many organisations are nearly full is not known: %s", error)
            await asyncio.sleep(_WATCH_S)

    async def close(self) -> None:
        """End the queries that are under way."""
        tasks = [usage.query for usage in self._usages.values() if usage.query is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _usage_of(self, organization_id: str) -> _Usage:
        if len(self._usages) > _MAX_ORGANIZATIONS:
            self._usages = {name: usage for name, usage in self._usages.items() if usage.admitted > usage.finished}
        return self._usages.setdefault(organization_id, _Usage())

    async def _refresh(self, organization_id: str, usage: _Usage) -> None:
        """Read what is stored, or wait long enough for it: the query goes on, and whoever comes next shares it."""
        if usage.query is None:
            usage.query = asyncio.create_task(self._read(organization_id, usage))
        query = usage.query
        await asyncio.wait([query], timeout=_WAIT_S)
        if query.done():
            query.result()
        else:
            usage.valid_until = self._clock() + _VALID_S

    async def _read(self, organization_id: str, usage: _Usage) -> None:
        finished = usage.finished  # the answer may be older than those that finish meanwhile
        try:
            usage.stored = await read_stored_bytes(self._store, organization_id)
        except StoreAwayError:
            usage.stored = None
        else:
            usage.admitted -= finished
            usage.finished -= finished
        finally:
            usage.valid_until = self._clock() + _VALID_S
            usage.query = None
