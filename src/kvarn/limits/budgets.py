"""Budgets of organisations and projects as one gateway knows them, in memory.

A gateway keeps three numbers of each budget

    read      use by all gateways in the last reading of the database
    written   use that this gateway has written since
    waiting   use by its requests that have ended and are not in the database yet

and makes a `Limit` of them for each request; `Counts` adds what requests in flight and other gateways hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.limits.types import Kind, Limit, Reservation, Spending
from kvarn.store.ids import new_id
from kvarn.store.ledger import LedgerEvent, period_name
from kvarn.store.models import Budget


@dataclass(slots=True)
class _Known:
    rule: Budget
    period: str
    read: int
    """Spent in `period`, as the database had it."""
    written: int = 0
    """In `period` by this gateway, since then."""
    told: int = 0
    """Unread use that the counts were last told."""

    @property
    def key(self) -> str:
        return f"kvarn:budgets:{{{self.rule.organization_id}}}:{self.rule.id}"


class BudgetTracker:
    """All budgets. Used from one thread; no I/O."""

    def __init__(self) -> None:
        self.gateway = new_id("gw_")
        """Holder of what this gateway has not read back."""
        self.on_read: Callable[[], None] = lambda: None
        """Called when the database has been read anew."""
        self._by_key: dict[str, _Known] = {}
        self._by_holder: dict[str, list[_Known]] = {}
        self._waiting = Counter[tuple[str, str]]()
        """By holder and unit."""

    def replace(self, rules: Sequence[Budget], spent: Mapping[str, int], now: float) -> None:
        """Take over what the database says: all budgets, and what was spent by id in their present periods."""
        before, self._by_key, self._by_holder = self._by_key, {}, {}
        for rule in rules:
            known = _Known(rule, period_name(rule.period, now), spent.get(rule.id, 0))
            if (old := before.get(known.key)) is not None:
                known.told = old.told
            self._by_key[known.key] = known
            self._by_holder.setdefault(rule.holder_id, []).append(known)
        self.on_read()

    def limits(
        self, holders: Iterable[str], tokens: int, cost: int, now: float
    ) -> tuple[list[Budget], tuple[Limit, ...]]:
        """The hard limits of holders' budgets for a request that can come to so much at most, and as many limits to
        reserve."""
        found = [known for known in self._known(holders) if known.rule.hard_limit is not None]
        limits = (self._limit(known, known.rule.amount(tokens, cost), now) for known in found)
        return [known.rule for known in found], tuple(limits)

    def refreshed(self, reservation: Reservation) -> Reservation:
        """The same reservation with what is spent by now, to be told to the counts."""
        limits = list(reservation.limits)
        for place, limit in enumerate(limits):
            if limit.spending is not None and (known := self._by_key.get(limit.key)) is not None:
                spending = self._spending(known, SYSTEM_CLOCK.time())
                limits[place] = msgspec.structs.replace(limit, spending=spending)
                known.told = spending.unread
        return msgspec.structs.replace(reservation, limits=tuple(limits))

    def held(self, *, changed: bool) -> Iterator[Reservation]:
        """Reservations of what this gateway has not read back, to be told to the counts: of all budgets of which there
        is any, or of those of which it has changed since they were told."""
        now = SYSTEM_CLOCK.time()
        for known in self._by_key.values():
            unread = self._used(known, now)[2]
            if known.rule.hard_limit is not None and (unread != known.told if changed else unread):
                limit, known.told = self._limit(known, unread, now), unread
                yield Reservation(self.gateway, known.rule.organization_id, (limit,), 0)

    def finished(self, event: LedgerEvent) -> None:
        """A request of this gateway has ended; the database will know."""
        for holder in (event.organization_id, event.project_id):
            self._waiting[holder, "tokens"] += event.tokens
            self._waiting[holder, "cost"] += event.cost

    def written(self, events: Iterable[LedgerEvent]) -> None:
        """The database knows of these."""
        for event in events:
            holders = (event.organization_id, event.project_id)
            for holder in holders:
                for unit, amount in (("tokens", event.tokens), ("cost", event.cost)):
                    self._waiting[holder, unit] -= amount
                    if not self._waiting[holder, unit]:
                        del self._waiting[holder, unit]
            for known in self._known(holders):
                if known.period in event.periods:
                    known.written += known.rule.amount(event.tokens, event.cost)

    def all_written(self) -> None:
        """All that has ended is in the database. What still counts as waiting never will be: it was dropped, or what
        the journal had of it cannot be read."""
        self._waiting.clear()

    def alerts(self, now: float) -> list[tuple[Budget, str]]:
        """Budgets past their soft limit for which no alert has been given in the period, with its name."""
        found = []
        for known in self._by_key.values():
            period, read, unread = self._used(known, now)
            soft_limit = known.rule.soft_limit
            if soft_limit is not None and known.rule.alerted_period != period and read + unread >= soft_limit:
                found.append((known.rule, period))
        return found

    def _known(self, holders: Iterable[str]) -> Iterator[_Known]:
        return (known for holder in holders for known in self._by_holder.get(holder, ()))

    def _used(self, known: _Known, now: float) -> tuple[str, int, int]:
        """The present period, what the database had of it, and what this gateway used since then."""
        period, waiting = period_name(known.rule.period, now), self._waiting[known.rule.holder_id, known.rule.unit]
        if known.period != period:  # nothing has been read of it yet
            return period, 0, waiting
        return period, known.read, known.written + waiting

    def _spending(self, known: _Known, now: float) -> Spending:
        period, read, unread = self._used(known, now)
        return Spending(period, read, self.gateway, unread)

    def _limit(self, known: _Known, amount: int, now: float) -> Limit:
        rule = known.rule
        assert rule.hard_limit is not None
        return Limit(Kind.BUDGET, known.key, rule.hard_limit, amount, spending=self._spending(known, now))
