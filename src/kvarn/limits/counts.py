"""The rule by which limits are counted, in memory.

    requests, tokens      a window: charges by the second in which they were made, which count for a minute
    concurrency, budgets  a hold: an amount for each running request, for as long as its lease is renewed; of a budget
                          on top of what the ledger has spent in its period

A minute is the second in progress and the 60 before it. What a reservation takes is charged to the second in which it
is made, and counts until that second has left the window; a reservation is admitted where the sum and itself stay
within the limit. So in no 60 seconds are more tokens admitted than the limit says, and a charge is forgotten at most
one second late.

Why not a token bucket, which needs two numbers where this needs up to 61: a reservation is corrected when the answer
has ended, and a bucket cannot be corrected exactly. It has refilled meanwhile, and whether the refill would have
overflowed without the reservation is no longer known: giving all of it back lets a tenant that holds long answers open
and then leaves them use several minutes' worth at once. A sum over seconds is corrected where it was charged. A bucket
would also let twice the limit through in a minute that follows a quiet one. The price of a window: after a burst of all
that a minute allows, the next one comes a minute later, where a bucket refills little by little.

Corrections: an unused reservation is taken off the second it was charged to, where that still counts. What was used
beyond the reservation is charged to the second in which it is noticed, and may make the sum larger than the limit:
nothing is admitted until enough has left the window. A mark remembers for each running request what it was charged, and
where; without one, nothing is corrected.

A budget's use is counted at every moment: held by its request (the most that it can come to), then by its gateway (what
it came to), then in a reading of the ledger that lets the gateway forget it; for a moment by two of them. What is held
belongs to no period: what is in flight when one ends counts in the next. What is spent in a period only grows, so of
two readings the larger is the later. Only updates, which arrive in order, set what a gateway holds.

Marks and holds are leases: renewed while the request runs, they expire when the gateway that held them was killed.
All numbers are integers. `counts.lua` is the same rule in Redis, and tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvarn.clock import SYSTEM_CLOCK
from kvarn.limits.types import NEVER, Decision, Kind, Limit, Reservation, Update, Usage

END_GUESS_MS = 1000
"""A guess of when one of the running requests will end."""
KEEP_MS = 86_400_000
"""Time for which a period's spending is kept without a call: longer than any reading of the ledger is old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time spans for which counts are kept."""

    slot_ms: int = 1000
    """Width of what is charged together."""
    window: int = 60
    """Slots before the one in progress that still count."""
    lease_ms: int = 30_000
    """Life of marks and holds without renewal."""

    def end_ms(self, slot: int) -> int:
        """Moment at which what was charged to a slot leaves the window."""
        return (slot + self.window + 1) * self.slot_ms


@dataclass(slots=True)
class _Window:
    """Charges by slot, oldest first."""

    charges: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def forget(self, oldest: int) -> None:
        while self.charges and (slot := next(iter(self.charges))) < oldest:
            self.total -= self.charges.pop(slot)

    def add(self, slot: int, amount: int) -> None:
        """Charge to the newest slot, or take off (negative) one that still counts."""
        before = self.charges.get(slot, 0)
        count = max(0, before + amount)
        self.total += count - before
        if count:
            self.charges[slot] = count
        elif before:
            del self.charges[slot]


@dataclass(slots=True)
class _Hold:
    """Amounts of running requests, and of gateways (gw_...) what they have not read back."""

    amounts: dict[str, int] = field(default_factory=dict)
    expiries: dict[str, int] = field(default_factory=dict)
    """Moment at which each holder's lease ends, earliest first."""
    total: int = 0
    spent: dict[str, int] = field(default_factory=dict)
    """By period; the latest two."""
    called_ms: int = 0

    def set(self, holder: str, amount: int, expires_ms: int) -> None:
        self.total += amount - self.amounts.pop(holder, 0)
        self.expiries.pop(holder, None)
        if amount > 0:
            self.amounts[holder] = amount
            self.expiries[holder] = expires_ms

    def expire(self, now_ms: int) -> None:
        """Drop holders that did not renew."""
        while self.expiries and self.expiries[first := next(iter(self.expiries))] <= now_ms:
            self.set(first, 0, 0)

    def learn(self, period: str, spent: int) -> None:
        """Take over a reading of what is spent in a period."""
        self.spent[period] = max(self.spent.pop(period, 0), spent)
        if len(self.spent) > 2:
            del self.spent[next(iter(self.spent))]


@dataclass(slots=True)
class _Mark:
    """Charge of a running request."""

    slot: int
    """To which its reservation was charged."""
    charged: int
    """Tokens."""
    expires_ms: int


def _now_ms() -> int:
    return int(SYSTEM_CLOCK.now() * 1000)


class Counts:
    """A `CountsBackend` in this process.

    Args:
        timing: How long things count.
        now_ms: A clock that never goes back.
    """

    away = False

    def __init__(self, timing: Timing | None = None, now_ms: Callable[[], int] = _now_ms) -> None:
        self._timing = timing or Timing()
        self._now_ms = now_ms
        self._sweep_ms = 0
        self._windows: dict[str, _Window] = {}
        self._holds: dict[str, _Hold] = {}
        self._marks: dict[str, _Mark] = {}

    def __len__(self) -> int:
        """Counts and marks that are kept."""
        return len(self._windows) + len(self._holds) + len(self._marks)

    async def reserve(self, reservation: Reservation) -> Decision:
        return self.decide(reservation)

    def decide(self, reservation: Reservation) -> Decision:
        """Same as `reserve`, at once."""
        now_ms = self._swept()
        usages = [self._read(limit, reservation.amount(limit), now_ms) for limit in reservation.limits]
        admitted = all(usage.wait_ms == 0 for usage in usages)
        if admitted:
            mark = _Mark(now_ms // self._timing.slot_ms, reservation.tokens, now_ms + self._timing.lease_ms)
            self._set_mark(reservation, mark)
            charged = zip(reservation.limits, usages, strict=True)
            usages = [self._charge(limit, reservation, mark, usage, now_ms) for limit, usage in charged]
        return Decision(admitted, tuple(usages))

    def update(self, update: Update) -> None:
        now_ms, reservation = self._swept(), update.reservation
        expires_ms = now_ms + self._timing.lease_ms
        for limit in reservation.limits:
            if not limit.kind.is_window:
                hold = self._hold(limit, now_ms)
                if (spending := limit.spending) is not None:
                    hold.set(spending.gateway, spending.unread, expires_ms)
                hold.set(reservation.work_id, 0 if update.ended else limit.amount, expires_ms)
        slot, mark = now_ms // self._timing.slot_ms, self._marks.pop(reservation.work_id, None)
        if mark is not None and mark.expires_ms <= now_ms:
            mark = None
        if not update.ended:
            # A mark that is gone is made anew, and nothing charged for the past: its counts went with it.
            mark = mark or _Mark(slot, update.used, expires_ms)
            self._correct(reservation, Kind.TOKENS, slot, max(0, update.used - mark.charged))
            self._set_mark(reservation, _Mark(mark.slot, max(mark.charged, update.used), expires_ms))
        elif mark is not None:
            more = update.used - mark.charged
            self._correct(reservation, Kind.TOKENS, slot if more > 0 else mark.slot, more)
            self._correct(reservation, Kind.REQUESTS, mark.slot, -update.whole)

    def _swept(self) -> int:
        """The time; now and then what no longer counts is dropped: holders who never come again take no memory."""
        now_ms = self._now_ms()
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + self._timing.lease_ms
            oldest = now_ms // self._timing.slot_ms - self._timing.window
            for window in self._windows.values():
                window.forget(oldest)
            for hold in self._holds.values():
                hold.expire(now_ms)
                if hold.called_ms + KEEP_MS <= now_ms:
                    hold.spent.clear()
            self._windows = {key: window for key, window in self._windows.items() if window.charges}
            self._holds = {key: hold for key, hold in self._holds.items() if hold.amounts or hold.spent}
            self._marks = {key: mark for key, mark in self._marks.items() if mark.expires_ms > now_ms}
        return now_ms

    def _read(self, limit: Limit, amount: int, now_ms: int) -> Usage:
        if not limit.kind.is_window:
            return self._read_hold(limit, self._hold(limit, now_ms))
        window = self._window(limit.key, now_ms // self._timing.slot_ms)
        excess = window.total + amount - limit.maximum
        wait_ms = 0 if excess <= 0 else self._wait_ms(window, excess, now_ms)
        reset_ms = self._timing.end_ms(next(reversed(window.charges))) - now_ms if window.charges else 0
        return Usage(window.total, wait_ms, reset_ms)

    def _wait_ms(self, window: _Window, excess: int, now_ms: int) -> int:
        """Until so much has left the window."""
        for slot, count in window.charges.items():
            excess -= count
            if excess <= 0:
                return self._timing.end_ms(slot) - now_ms
        return NEVER

    @staticmethod
    def _read_hold(limit: Limit, hold: _Hold) -> Usage:
        spending, spent, certain = limit.spending, 0, 0
        if spending is not None:
            spent = hold.spent[spending.period]
            certain = max(spent, spending.spent + spending.unread)
        wait_ms = 0
        if certain >= limit.maximum or certain + limit.amount > limit.maximum:
            wait_ms = NEVER
        elif spent + hold.total + limit.amount > limit.maximum:
            wait_ms = END_GUESS_MS
        return Usage(hold.total if spending is None else certain, wait_ms, 0)

    def _charge(self, limit: Limit, reservation: Reservation, mark: _Mark, usage: Usage, now_ms: int) -> Usage:
        if limit.kind.is_window:
            window = self._windows[limit.key]
            window.add(mark.slot, reservation.amount(limit))
            return Usage(window.total, 0, self._timing.end_ms(mark.slot) - now_ms)
        hold = self._holds[limit.key]
        hold.set(reservation.work_id, limit.amount, mark.expires_ms)
        return Usage(hold.total, 0, 0) if limit.spending is None else usage

    def _set_mark(self, reservation: Reservation, mark: _Mark) -> None:
        if any(limit.kind.is_window for limit in reservation.limits):
            self._marks[reservation.work_id] = mark

    def _correct(self, reservation: Reservation, kind: Kind, slot: int, amount: int) -> None:
        for limit in reservation.limits:
            if limit.kind is kind and amount:
                self._window(limit.key, slot).add(slot, amount)

    def _window(self, key: str, slot: int) -> _Window:
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window()
        window.forget(slot - self._timing.window)
        return window

    def _hold(self, limit: Limit, now_ms: int) -> _Hold:
        hold = self._holds.get(limit.key)
        if hold is None:
            hold = self._holds[limit.key] = _Hold()
        hold.expire(now_ms)
        if (spending := limit.spending) is not None:
            hold.called_ms = now_ms
            hold.learn(spending.period, spending.spent)
        return hold
