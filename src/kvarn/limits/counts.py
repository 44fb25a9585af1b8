"""The algorithm of the limits: a sliding window of whole seconds, and leases for what runs.

A minute is the second in progress and the 60 before it. What an order takes is charged to the second in which it was
taken in, and counts until that second has left the window; an order is taken in where the sum and itself stay within
the limit. So in no 60 seconds are more tokens taken in than the limit says, not one, and a charge is forgotten at most
one second late.

Why not a token bucket, which needs two numbers where this needs up to 61: a reservation is corrected when the answer is
over, and a bucket cannot take a correction exactly. It has been refilling meanwhile, and whether the refill would have
run over without the reservation is no longer known: to give all of it back lets a tenant that holds long answers open
and then leaves them use several minutes' worth at once; to give back less punishes who reserved with care. A sum over
seconds is corrected where it was charged, and is then what it would have been. A bucket would also let twice the limit
through in a minute that follows a quiet one. What a window costs: after a burst of all that a minute allows, the next
one comes a minute later, where a bucket refills little by little.

Corrections: unused reservation is taken off the second it was charged to, where that still counts. What was used beyond
the reservation is charged to the second in which it is noticed, and may make the sum larger than the limit: nothing is
taken in until enough has left the window.

A mark remembers for each running piece of work what it was charged, and where. Settling says what was used in all, not
what to add, and takes the mark away: said twice, or of an order that was never taken in, it has no effect. Marks and
the places of running requests are leases: renewed while the work runs, they run out by themselves when the gateway that
held them was killed.

All numbers are integers; the time is passed in. `counts.lua` is the same algorithm in Redis, and tests hold the two
together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvarn.limits.orders import NEVER, Bound, Kind, Order, Reading, Verdict

END_GUESS_MS = 1000
"""What is said of when one of the running requests will end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things count."""

    slot_ms: int = 1000
    """Width of what is charged together."""
    window: int = 60
    """Slots before the one in progress that still count."""
    lease_ms: int = 30_000
    """Life of marks and of places of running requests without renewal."""

    def end_ms(self, slot: int) -> int:
        """Moment at which what was charged to a slot leaves the window."""
        return (slot + self.window + 1) * self.slot_ms


@dataclass(slots=True)
class _Window:
    """Charges by slot, oldest first."""

    charges: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def forget(self, oldest: int) -> None:
        """Drop what was charged before the slot `oldest`."""
        while self.charges and (slot := next(iter(self.charges))) < oldest:
            self.total -= self.charges.pop(slot)

    def add(self, slot: int, amount: int) -> None:
        """Charge to the newest slot, or take off (negative) one that still counts."""
        count = max(0, self.charges.get(slot, 0) + amount)
        self.total += count - self.charges.get(slot, 0)
        if count:
            self.charges[slot] = count
        else:
            self.charges.pop(slot, None)


@dataclass(slots=True)
class _Mark:
    """Of a running piece of work."""

    slot: int
    """To which its order was charged."""
    charged: int
    """Tokens."""
    expires_ms: int


class Counts:
    """The counts of one process.

    Args:
        timing: How long things count.

    Every `now_ms` is of one clock that never goes back.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._windows: dict[str, _Window] = {}
        self._leases: dict[str, dict[str, int]] = {}
        """Of each bound, work id -> moment of expiry, in the order of these."""
        self._marks: dict[str, _Mark] = {}

    def take(self, order: Order, now_ms: int) -> Verdict:
        """Take an order in, if every bound has room; otherwise count nothing."""
        readings = [self._read(bound, order.amount(bound), now_ms) for bound in order.bounds]
        admitted = all(reading.wait_ms == 0 for reading in readings)
        if admitted:
            mark = _Mark(now_ms // self.timing.slot_ms, order.tokens, now_ms + self.timing.lease_ms)
            self._marks[order.work_id] = mark
            readings = [self._charge(bound, order, mark, now_ms) for bound in order.bounds]
        return Verdict(order, admitted, tuple(readings))

    def renew(self, order: Order, used: int, now_ms: int) -> None:
        """The work still runs, and has used so many tokens. A mark that is gone is made anew, nothing charged for the
        past: its counts went with it."""
        slot, expires_ms = now_ms // self.timing.slot_ms, now_ms + self.timing.lease_ms
        mark = self._mark(order, now_ms) or _Mark(slot, used, expires_ms)
        self._correct(order, slot, max(0, used - mark.charged))
        self._marks[order.work_id] = _Mark(mark.slot, max(mark.charged, used), expires_ms)
        for bound in order.bounds:
            if bound.kind is Kind.CONCURRENCY:
                leases = self._leases.setdefault(bound.key, {})
                leases.pop(order.work_id, None)
                leases[order.work_id] = expires_ms

    def settle(self, order: Order, used: int, now_ms: int, *, whole: bool = False) -> None:
        """The work is over: charge what it used beyond its reservation, or give back what it did not use; `whole` gives
        the request back too."""
        for bound in order.bounds:
            if bound.kind is Kind.CONCURRENCY:
                self._leases.get(bound.key, {}).pop(order.work_id, None)
        mark = self._mark(order, now_ms)
        if mark is None:
            return
        del self._marks[order.work_id]
        more = used - mark.charged
        self._correct(order, now_ms // self.timing.slot_ms if more > 0 else mark.slot, more)
        if whole:
            self._correct(order, mark.slot, -1, Kind.REQUESTS)

    def sweep(self, now_ms: int) -> None:
        """Drop what no longer counts, so that holders who never come again take no memory."""
        oldest = now_ms // self.timing.slot_ms - self.timing.window
        for window in self._windows.values():
            window.forget(oldest)
        for key in list(self._leases):
            self._running(key, now_ms)
        self._windows = {key: window for key, window in self._windows.items() if window.charges}
        self._leases = {key: leases for key, leases in self._leases.items() if leases}
        self._marks = {key: mark for key, mark in self._marks.items() if mark.expires_ms > now_ms}

    def __len__(self) -> int:
        """Counts and marks that are kept."""
        return len(self._windows) + len(self._leases) + len(self._marks)

    def _read(self, bound: Bound, amount: int, now_ms: int) -> Reading:
        if bound.kind is Kind.CONCURRENCY:
            running = len(self._running(bound.key, now_ms))
            wait_ms = 0 if running < bound.limit else END_GUESS_MS if bound.limit > 0 else NEVER
            return Reading(running, wait_ms, 0)
        window = self._window(bound.key, now_ms // self.timing.slot_ms)
        excess = window.total + amount - bound.limit
        wait_ms = 0 if excess <= 0 else self._wait_ms(window, excess, now_ms)
        reset_ms = self.timing.end_ms(next(reversed(window.charges))) - now_ms if window.charges else 0
        return Reading(window.total, wait_ms, reset_ms)

    def _wait_ms(self, window: _Window, excess: int, now_ms: int) -> int:
        """Until so much has left the window."""
        for slot, count in window.charges.items():
            excess -= count
            if excess <= 0:
                return self.timing.end_ms(slot) - now_ms
        return NEVER

    def _charge(self, bound: Bound, order: Order, mark: _Mark, now_ms: int) -> Reading:
        if bound.kind is Kind.CONCURRENCY:
            leases = self._leases[bound.key]
            leases[order.work_id] = mark.expires_ms
            return Reading(len(leases), 0, 0)
        window = self._windows[bound.key]
        window.add(mark.slot, order.amount(bound))
        return Reading(window.total, 0, self.timing.end_ms(mark.slot) - now_ms)

    def _correct(self, order: Order, slot: int, amount: int, kind: Kind = Kind.TOKENS) -> None:
        for bound in order.bounds:
            if bound.kind is kind and amount:
                self._window(bound.key, slot).add(slot, amount)

    def _window(self, key: str, slot: int) -> _Window:
        window = self._windows.setdefault(key, _Window())
        window.forget(slot - self.timing.window)
        return window

    def _running(self, key: str, now_ms: int) -> dict[str, int]:
        leases = self._leases.setdefault(key, {})
        while leases and leases[first := next(iter(leases))] <= now_ms:
            del leases[first]
        return leases

    def _mark(self, order: Order, now_ms: int) -> _Mark | None:
        mark = self._marks.get(order.work_id)
        return mark if mark is not None and mark.expires_ms > now_ms else None
