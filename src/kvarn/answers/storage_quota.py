"""Whether an organisation may store more: checked before an answer is made that would be stored."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvarn.answers.errors import storage_full
from kvarn.answers.record import RequestRecord
from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError, StoreAwayError
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_organizations_over, read_stored_bytes

_VALID_S = 1.0
"""Seconds for which an answer is believed that says that there is space."""
_WAIT_S = 1.0
"""Seconds that a request waits for the database's answer."""
_MAX_ORGANIZATIONS = 10_000

_log = logging.getLogger("kvarn.gateway")


@dataclass(slots=True)
class _Usage:
    """What is known of an organisation."""

    stored: int | None = None
    """Bytes, by the latest answer, and what requests were admitted with since; None where the database is away."""
    running: int = 0
    """What requests were admitted with that are not over: the database may not know of it."""
    valid_until: float = -math.inf
    """Not asked before, where there is space. Monotonic seconds."""
    answers: int = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def would_exceed(self, size: int, max_bytes: int) -> bool:
        """Whether so many bytes do not fit, as far as is known."""
        return self.stored is not None and self.stored + size > max_bytes

    def admit(self, size: int) -> None:
        """A request brings so many bytes."""
        self.running += size
        if self.stored is not None:
            self.stored += size

    def finish(self, size: int) -> None:
        """It is over: the database knows what it stored."""
        self.running -= size


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
        size = ROW_BYTES + record.body_bytes
        usage = await self._usage_of(record.principal.organization_id, size)
        if usage.would_exceed(size, self.max_bytes):
            raise storage_full(StorageFullError(usage.stored or 0, self.max_bytes, size), param, f"Or {instead}.")
        usage.admit(size)
        record.holdings.callback(usage.finish, size)

    async def is_full(self, organization_id: str) -> bool:
        """Whether an organisation has stored as much as it may, by an answer of the last second."""
        usage = await self._usage_of(organization_id, 1)
        return usage.stored is not None and usage.stored >= self.max_bytes

    async def count_nearly_full(self, report: Callable[[int], object]) -> None:
        """Report how many organisations have stored more than four fifths of their quota."""
        report(await count_organizations_over(self._store, self.max_bytes * 4 // 5))

    async def _usage_of(self, organization_id: str, size: int) -> _Usage:
        """What an organisation has stored: asked anew where the answer is old, or has no room for `size` bytes."""
        if len(self._usages) > _MAX_ORGANIZATIONS:
            self._usages = {name: usage for name, usage in self._usages.items() if usage.running}
        usage = self._usages.setdefault(organization_id, _Usage())
        if self._clock() >= usage.valid_until or usage.would_exceed(size, self.max_bytes):
            seen = usage.answers
            async with usage.asking:
                if usage.answers == seen:  # else somebody else has asked meanwhile
                    await self._ask(organization_id, usage)
        return usage

    async def _ask(self, organization_id: str, usage: _Usage) -> None:
        try:
            async with asyncio.timeout(_WAIT_S):
                usage.stored = await read_stored_bytes(self._store, organization_id) + usage.running
        except StoreAwayError:
            usage.stored = None
        except TimeoutError:
            _log.debug("what %s has stored is not known anew: the last answer holds", organization_id)
        usage.answers += 1
        usage.valid_until = self._clock() + _VALID_S
