"""Remaining budgets of organisations and projects, in memory.

A gateway keeps four numbers of each budget

    read      use by all gateways in the last reading of the database
    written   use that this gateway has written since
    waiting   use by its requests that have ended and are not in the database yet
    reserved  the most that its requests in flight can use

and admits a request while their sum is below the hard limit. So with one gateway a budget is overspent by less than
the most that one request can use; with several also by what the others have admitted and not yet written, or wrote
since the last reading. Gateways that share a Redis share their reservations (`budget_reservations`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvarn.store.ledger import LedgerEvent, period_name
from kvarn.store.models import Budget


class BudgetSpentError(Exception):
    """A budget has nothing left, or not enough.

    Args:
        rule: The budget.
        left: What is not spent of it.
        requested: What the request can come to, where that is more than is left, or than other requests leave.
    """

    def __init__(self, rule: Budget, left: int = 0, requested: int = 0) -> None:
        super().__init__(f"budget {rule.id} is spent")
        self.rule = rule
        self.left = max(0, left)
        self.requested = requested


@dataclass(slots=True)
class Sums:
    """Tokens and billionths of the currency's unit."""

    tokens: int = 0
    cost: int = 0

    def add(self, tokens: int, cost: int) -> None:
        """Add, or take away what is negative."""
        self.tokens += tokens
        self.cost += cost


@dataclass(frozen=True, slots=True)
class ReservedAmount:
    """The most that a request in flight can come to."""

    holders: tuple[str, ...]
    tokens: int
    cost: int


@dataclass(slots=True)
class _Known:
    rule: Budget
    period: str
    read: int
    """Spent in `period`, as the database had it."""
    written: int = 0
    """In `period` by this gateway, since then."""


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """State of a budget with a hard limit in this gateway."""

    rule: Budget
    period: str
    read: int
    """Spent in it, as the database had it."""
    unread: int
    """Use by this gateway's requests since then."""


class BudgetTracker:
    """All budgets. Used from one thread; asks nobody."""

    def __init__(self) -> None:
        self._by_holder: dict[str, list[_Known]] = {}
        self._waiting: defaultdict[str, Sums] = defaultdict(Sums)
        self._reserved: defaultdict[str, Sums] = defaultdict(Sums)

    def replace(self, rules: Sequence[Budget], spent: Mapping[str, int], now: float) -> None:
        """Take over what the database says: all budgets, and what was spent by id in their present periods."""
        by_holder: dict[str, list[_Known]] = {}
        for rule in rules:
            known = _Known(rule, period_name(rule.period, now), spent.get(rule.id, 0))
            by_holder.setdefault(rule.holder_id, []).append(known)
        self._by_holder = by_holder

    def reserve(self, holders: Sequence[str], tokens: int, cost: int, now: float) -> ReservedAmount | None:
        """Let a request in that can come to so much at most; None where no budget holds for it.

        Raises:
            BudgetSpentError: A hard limit is reached.
        """
        for known in self._known(holders):
            limit = known.rule.hard_limit
            if limit is not None and self._sum(known, now) >= limit:
                raise BudgetSpentError(known.rule)
        return self.add(holders, tokens, cost)

    def add(self, holders: Sequence[str], tokens: int, cost: int) -> ReservedAmount | None:
        """Reserve for a request that has already been admitted."""
        held = tuple(holder for holder in holders if holder in self._by_holder)
        if not held:
            return None
        for holder in held:
            self._reserved[holder].add(tokens, cost)
        return ReservedAmount(held, tokens, cost)

    def statuses(self, holders: Iterable[str], now: float) -> list[BudgetStatus]:
        """The states of the holders' budgets with a hard limit."""
        return [self._status(known, now) for known in self._known(holders) if known.rule.hard_limit is not None]

    def all_statuses(self, now: float) -> list[BudgetStatus]:
        """The states of all budgets with a hard limit."""
        return self.statuses(self._by_holder, now)

    def release(self, reservation: ReservedAmount) -> None:
        """The request is over."""
        self._subtract(self._reserved, reservation.holders, reservation.tokens, reservation.cost)

    def finished(self, event: LedgerEvent) -> None:
        """A request of this gateway has ended; the database will know."""
        for holder in (event.organization_id, event.project_id):
            self._waiting[holder].add(event.tokens, event.cost)

    def written(self, events: Iterable[LedgerEvent]) -> None:
        """The database knows of these."""
        for event in events:
            holders = (event.organization_id, event.project_id)
            self._subtract(self._waiting, holders, event.tokens, event.cost)
            for known in self._known(holders):
                if known.period in event.periods:
                    known.written += known.rule.amount(event.tokens, event.cost)

    def all_written(self) -> None:
        """All that has ended is in the database. What still counts as waiting never will be: it was dropped, or what
        the journal had of it cannot be read."""
        self._waiting.clear()

    def alerts(self, now: float) -> list[tuple[Budget, str]]:
        """Budgets past their soft limit for which no alert has been given in the period, with its name."""
        return [
            (known.rule, period_name(known.rule.period, now))
            for every in self._by_holder.values()
            for known in every
            if known.rule.soft_limit is not None
            and known.rule.alerted_period != period_name(known.rule.period, now)
            and self._used(known, now) >= known.rule.soft_limit
        ]

    def _known(self, holders: Iterable[str]) -> Iterator[_Known]:
        return (known for holder in holders for known in self._by_holder.get(holder, ()))

    def _status(self, known: _Known, now: float) -> BudgetStatus:
        period, waiting = period_name(known.rule.period, now), self._waiting.get(known.rule.holder_id)
        unread = known.rule.amount(waiting.tokens, waiting.cost) if waiting else 0
        if known.period != period:  # nothing has been read of it yet
            return BudgetStatus(known.rule, period, 0, unread)
        return BudgetStatus(known.rule, period, known.read, known.written + unread)

    def _used(self, known: _Known, now: float) -> int:
        """Spent for certain."""
        status = self._status(known, now)
        return status.read + status.unread

    def _sum(self, known: _Known, now: float) -> int:
        reserved = self._reserved.get(known.rule.holder_id)
        return self._used(known, now) + (known.rule.amount(reserved.tokens, reserved.cost) if reserved else 0)

    @staticmethod
    def _subtract(sums: defaultdict[str, Sums], holders: Iterable[str], tokens: int, cost: int) -> None:
        for holder in holders:
            sums[holder].add(-tokens, -cost)
            if sums[holder] == Sums():
                del sums[holder]
