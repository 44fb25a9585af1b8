"""Budget reservations of one server's gateway processes: the algorithm of `budgets.lua`, in memory.

The main process runs it for all of them when they share no Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvarn.clock import SYSTEM_CLOCK


@dataclass(slots=True)
class _Budget:
    """One budget; of no period, but for what is spent."""

    amounts: dict[str, int] = field(default_factory=dict)
    """By holder: a request, or a gateway process (gw_...)."""
    expiries: dict[str, int] = field(default_factory=dict)
    """Moment at which each holder's lease ends, in the order of these."""
    held: int = 0
    called_ms: int = 0
    """Time of the last call that named it."""
    spent: dict[str, int] = field(default_factory=dict)
    """By the name of the period; the latest two."""

    def hold(self, holder: str, amount: int, expires_ms: int) -> None:
        """Set what a holder holds."""
        before = self.amounts.pop(holder, 0)
        self.expiries.pop(holder, None)
        if amount > 0:
            self.amounts[holder] = amount
            self.expiries[holder] = expires_ms
        self.held += amount - before

    def end_leases(self, now_ms: int) -> None:
        """Drop holders that did not renew."""
        while self.expiries and self.expiries[first := next(iter(self.expiries))] <= now_ms:
            self.hold(first, 0, 0)

    def learn(self, period: str, read: int) -> int:
        """Take over a reading of what is spent in a period; it only grows."""
        spent = self.spent[period] = max(self.spent.pop(period, 0), read)
        while len(self.spent) > 2:
            del self.spent[next(iter(self.spent))]
        return spent


class BudgetCounts:
    """Answers the calls that `BudgetReservations` makes. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.now) -> None:
        self._clock = clock
        self._budgets: dict[str, _Budget] = {}
        """By their key in Redis, in the order in which they were last called."""

    def __len__(self) -> int:
        return len(self._budgets)

    def run(self, keys: Sequence[str], argument: bytes) -> bytes:
        """Run an operation; keys, argument and answer are those of `budgets.lua`."""
        operation, lease_ms, keep_ms, *requested = msgspec.msgpack.decode(argument)
        now_ms = int(self._clock() * 1000)
        budgets: list[tuple[_Budget, list[Any], int]] = []
        for number, given in enumerate(requested):
            of_period, key = keys[3 * number : 3 * number + 2]
            budget = self._budgets[key] = self._budgets.pop(key, _Budget())
            budget.called_ms = now_ms
            budget.end_leases(now_ms)
            budgets.append((budget, given, budget.learn(of_period, given[1])))
        while self._budgets and self._budgets[first := next(iter(self._budgets))].called_ms + keep_ms <= now_ms:
            del self._budgets[first]  # its leases ended long ago
        expires_ms = now_ms + lease_ms
        if operation == "take":
            return msgspec.msgpack.encode(_take(budgets, expires_ms))
        for budget, given, _ in budgets:
            for holder, amount in zip(given[2::2], given[3::2], strict=True):
                budget.hold(holder, amount, expires_ms)
        return msgspec.msgpack.encode([True])


def _take(budgets: Sequence[tuple[_Budget, list[Any], int]], expires_ms: int) -> list[Any]:
    for number, (budget, (limit, _, holder, amount), spent) in enumerate(budgets, start=1):
        held = budget.held - budget.amounts.get(holder, 0)
        if spent >= limit or spent + held + amount > limit:
            return [False, number, spent]
    for budget, (_, _, holder, amount), _ in budgets:
        budget.hold(holder, amount, expires_ms)
    return [True]
