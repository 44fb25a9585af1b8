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
_MAX_MOMENTS = 1000
"""Moments of admissions that are told apart, of one organisation: the oldest are joined."""


@dataclass(slots=True)
class Balance:
    """Bytes that an organisation stores, as far as this process knows."""

    stored: int = 0  # bytes, as the database said last
    summed_at: int = -1
    """Beginning of the periodic sum that it holds, in milliseconds (`repositories/stored_bytes.py`)."""
    since: dict[int, int] = field(default_factory=dict)
    """Bytes that this process admitted since then, by the millisecond, the oldest first."""
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
        if summed_at != balance.summed_at:  # what was admitted while it was made is not in it
            balance.summed_at = summed_at
            balance.since = {at_ms: size for at_ms, size in balance.since.items() if at_ms > summed_at}
        balance.stored, balance.read_at = stored, self._clock()

    def check(self, organization_id: str, size: int) -> None:
        stored = self.stored(organization_id)
        if self.max_bytes is not None and size > 0 and stored + size > self.max_bytes:
            raise StorageFullError(stored, self.max_bytes, size)

    def add_file(self, organization_id: str, size: int) -> None:
        self.balance(organization_id).stored += size

    def admit(self, organization_id: str, size: int, now: float) -> int:
        """Let bytes be written that the next sum will count. `now`: seconds, of the clock that sums are timed by.
        Returns when they were admitted, for `give_back`. Raises as `check`."""
        self.check(organization_id, size)
        since, at_ms = self.balance(organization_id).since, int(now * 1000)
        since[at_ms] = since.get(at_ms, 0) + size
        if len(since) > _MAX_MOMENTS:
            oldest = since.pop(next(iter(since)))
            since[next(iter(since))] += oldest
        return at_ms

    def give_back(self, organization_id: str, size: int, admitted_ms: int) -> None:
        """Count admitted bytes no longer: they were not written. `admitted_ms` is what `admit` returned; a later sum
        has not counted them."""
        since = self.balance(organization_id).since
        if admitted_ms in since:
            since[admitted_ms] = max(0, since[admitted_ms] - size)

    def stored(self, organization_id: str) -> int:
        balance = self.balance(organization_id)
        return balance.stored + sum(balance.since.values())
