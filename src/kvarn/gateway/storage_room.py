"""Whether an organisation may store more: asked before an answer is made that would be kept."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvarn.gateway.errors import storage_full
from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError, StoreAwayError
from kvarn.store.repositories.stored_bytes import read_stored_bytes

_BELIEVED_S = 1.0
"""Seconds for which it is believed that there is room, and for which a database that did not answer is not asked."""
_WAIT_S = 1.0
"""Seconds that an answer is waited for."""
_REMEMBERED = 10_000


@dataclass(slots=True)
class _Known:
    """What is known of an organisation."""

    until: float = -math.inf
    """There is room, as far as anybody knows, until then. Monotonic seconds."""
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class StorageRoom:
    """Knows whether organisations have room left, by one question a second and organisation.

    An answer that is being made is kept however much is stored by then: what is refused is refused before. So an
    organisation may pass its bound by what it began in the second before it met it.

    Args:
        store: The database.
        most: Bytes that an organisation may store.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._store = store
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def check(self, organization_id: str, param: str, instead: str) -> None:
        """Let an answer be made that will be kept. While the database is away nobody knows, and none is refused.

        Args:
            organization_id: Whose it is.
            param: The field of the request that has it kept.
            instead: What the client may ask for instead, such as "send 'store': false".

        Raises:
            ApiError: 413, the organisation has met its bound.
        """
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        known = self._known.setdefault(organization_id, _Known())
        async with known.asking:  # those who come at the same time ask once
            if self._clock() < known.until:
                return
            stored = await self._ask(organization_id)
            if stored < self.most:
                known.until = self._clock() + _BELIEVED_S
                return
        raise storage_full(StorageFullError(stored, self.most), param, f"Or {instead}.")

    async def _ask(self, organization_id: str) -> int:
        try:
            async with asyncio.timeout(_WAIT_S):
                return await read_stored_bytes(self._store, organization_id)
        except (StoreAwayError, TimeoutError):
            return 0
