"""Bytes that organisations may store, and what this process knows of what they do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kvarn.clock import SYSTEM_CLOCK
from kvarn.store.errors import StorageFullError

_VALID_S = 1.0
"""Seconds for which what the database said is believed."""
_MAX_ORGANIZATIONS = 10_000


@dataclass(slots=True)
class Balance:
    """Bytes that an organisation stores, as far as this process knows."""

    stored: int = 0  # bytes, as the database said last
    summed_at: int = -1
    """Which periodic sum that holds (`repositories/stored_bytes.py`)."""
    since: int = 0
    """Bytes that this process admitted since that sum."""
    read_at: float = -math.inf
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class StorageQuota:
    """Refuses writes of organisations that store as much as they may. `max_bytes`: what one may store; None: no
    bound."""

    def __init__(self, max_bytes: int | None, clock: Callable[[], float] = SYSTEM_CLOCK.now) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._balances: dict[str, Balance] = {}

    def balance(self, organization_id: str) -> Balance:
        if len(self._balances) > _MAX_ORGANIZATIONS:
            self._balances.clear()
        return self._balances.setdefault(organization_id, Balance())

    def is_known(self, organization_id: str, size: int) -> bool:
        """Whether so many bytes fit by an answer of the last second: the database need not be asked again."""
        balance = self.balance(organization_id)
        fits = self.max_bytes is None or self.stored(organization_id) + size <= self.max_bytes
        return fits and self._clock() - balance.read_at < _VALID_S

    def note(self, organization_id: str, stored: int, summed_at: int) -> None:
        balance = self.balance(organization_id)
        if summed_at != balance.summed_at:
            balance.summed_at, balance.since = summed_at, 0
        balance.stored, balance.read_at = stored, self._clock()

    def check(self, organization_id: str, size: int) -> None:
        stored = self.stored(organization_id)
        if self.max_bytes is not None and size > 0 and stored + size > self.max_bytes:
            raise StorageFullError(stored, self.max_bytes, size)

    def add_file(self, organization_id: str, size: int) -> None:
        self.balance(organization_id).stored += size

    def admit(self, organization_id: str, size: int) -> int:
        """Let bytes be written that the next sum will count; the sum before it, for `give_back`. Raises as `check`."""
        self.check(organization_id, size)
        balance = self.balance(organization_id)
        balance.since += size
        return balance.summed_at

    def give_back(self, organization_id: str, size: int, summed_at: int) -> None:
        """Count admitted bytes no longer: they were not written. `summed_at` is what `admit` returned; a later sum has
        not counted them."""
        balance = self.balance(organization_id)
        if balance.summed_at == summed_at:
            balance.since = max(0, balance.since - size)

    def stored(self, organization_id: str) -> int:
        balance = self.balance(organization_id)
        return balance.stored + balance.since
