"""Counts of this process: a sliding window of whole seconds, and leases for what runs.

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
nothing is admitted until enough has left the window.

A mark remembers for each running request what it was charged, and where. Settling says what was used in all, not what
to add, and removes the mark: repeated, or for a reservation that was never made, it has no effect. Marks and the places
of running requests are leases: renewed while the request runs, they run out when the gateway that held them was killed.

All numbers are integers; the time is passed in. `counts.lua` is the same algorithm in Redis, and tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.limits.types import NEVER, Decision, Kind, Limit, Reservation, Usage

END_GUESS_MS = 1000
"""A guess of when one of the running requests will end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time spans for which counts are kept."""

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
    """Charge of a running request."""

    slot: int
    """To which its reservation was charged."""
    charged: int
    """Tokens."""
    expires_ms: int


class SlidingWindows:
    """The algorithm. Every `now_ms` is of one clock that never goes back.

    Args:
        timing: How long things count.
        clock: Monotonic seconds.
    """

    def __init__(self, timing: Timing | None = None, clock: Callable[[], float] = SYSTEM_CLOCK.now) -> None:
        self.timing = timing or Timing()
        self._clock = clock
        self._sweep_ms = 0
        self._windows: dict[str, _Window] = {}
        self._leases: dict[str, dict[str, int]] = {}
        """Leases of each limit: work id -> moment of expiry, earliest first."""
        self._marks: dict[str, _Mark] = {}

    def run(self, keys: Sequence[str], argument: bytes) -> bytes:
        """Run an operation; keys, argument and answer are those of `counts.lua`."""
        operation, _, _, _, work_id, tokens, used, whole, *given = msgspec.msgpack.decode(argument)
        kinds_and_maxima = zip(given[::2], given[1::2], strict=True)
        limits = [
            Limit(Kind(kind), "", "", "", maximum, key)
            for key, (kind, maximum) in zip(keys[1:], kinds_and_maxima, strict=True)
        ]
        reservation, now_ms = Reservation(work_id, "", tuple(limits), tokens), int(self._clock() * 1000)
        if now_ms >= self._sweep_ms:
            self.sweep(now_ms)
            self._sweep_ms = now_ms + self.timing.lease_ms
        answer: list[int] = [True]
        if operation == "take":
            decision = self.take(reservation, now_ms)
            answer = [decision.admitted]
            for usage in decision.usages:
                answer += [usage.used, usage.wait_ms, usage.reset_ms]
        elif operation == "renew":
            self.renew(reservation, used, now_ms)
        else:
            self.settle(reservation, used, now_ms, whole=whole)
        return msgspec.msgpack.encode(answer)

    def take(self, reservation: Reservation, now_ms: int) -> Decision:
        """Admit a reservation if every limit has room; otherwise count nothing."""
        usages = [self._read(limit, reservation.amount(limit), now_ms) for limit in reservation.limits]
        admitted = all(reading.wait_ms == 0 for reading in usages)
        if admitted:
            mark = _Mark(now_ms // self.timing.slot_ms, reservation.tokens, now_ms + self.timing.lease_ms)
            self._marks[reservation.work_id] = mark
            usages = [self._charge(limit, reservation, mark, now_ms) for limit in reservation.limits]
        return Decision(reservation, admitted, tuple(usages))

    def renew(self, reservation: Reservation, used: int, now_ms: int) -> None:
        """The request still runs, and has used so many tokens. A mark that is gone is made anew, and nothing
        charged for the past: its counts went with it."""
        slot, expires_ms = now_ms // self.timing.slot_ms, now_ms + self.timing.lease_ms
        mark = self._mark(reservation, now_ms) or _Mark(slot, used, expires_ms)
        self._correct(reservation, slot, max(0, used - mark.charged))
        self._marks[reservation.work_id] = _Mark(mark.slot, max(mark.charged, used), expires_ms)
        for limit in reservation.limits:
            if limit.kind is Kind.CONCURRENCY:
                leases = self._leases.setdefault(limit.key, {})
                leases.pop(reservation.work_id, None)
                leases[reservation.work_id] = expires_ms

    def settle(self, reservation: Reservation, used: int, now_ms: int, *, whole: bool = False) -> None:
        """The request has ended: charge what it used beyond its reservation, or give back what it did not use; `whole`
        gives the request back too."""
        for limit in reservation.limits:
            if limit.kind is Kind.CONCURRENCY:
                self._leases.get(limit.key, {}).pop(reservation.work_id, None)
        mark = self._mark(reservation, now_ms)
        if mark is None:
            return
        del self._marks[reservation.work_id]
        more = used - mark.charged
        self._correct(reservation, now_ms // self.timing.slot_ms if more > 0 else mark.slot, more)
        if whole:
            self._correct(reservation, mark.slot, -1, Kind.REQUESTS)

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

    def _read(self, limit: Limit, amount: int, now_ms: int) -> Usage:
        if limit.kind is Kind.CONCURRENCY:
            running = len(self._running(limit.key, now_ms))
            wait_ms = 0 if running < limit.maximum else END_GUESS_MS if limit.maximum > 0 else NEVER
            return Usage(running, wait_ms, 0)
        window = self._window(limit.key, now_ms // self.timing.slot_ms)
        excess = window.total + amount - limit.maximum
        wait_ms = 0 if excess <= 0 else self._wait_ms(window, excess, now_ms)
        reset_ms = self.timing.end_ms(next(reversed(window.charges))) - now_ms if window.charges else 0
        return Usage(window.total, wait_ms, reset_ms)

    def _wait_ms(self, window: _Window, excess: int, now_ms: int) -> int:
        """Until so much has left the window."""
        for slot, count in window.charges.items():
            excess -= count
            if excess <= 0:
                return self.timing.end_ms(slot) - now_ms
        return NEVER

    def _charge(self, limit: Limit, reservation: Reservation, mark: _Mark, now_ms: int) -> Usage:
        if limit.kind is Kind.CONCURRENCY:
            leases = self._leases[limit.key]
            leases[reservation.work_id] = mark.expires_ms
            return Usage(len(leases), 0, 0)
        window = self._windows[limit.key]
        window.add(mark.slot, reservation.amount(limit))
        return Usage(window.total, 0, self.timing.end_ms(mark.slot) - now_ms)

    def _correct(self, reservation: Reservation, slot: int, amount: int, kind: Kind = Kind.TOKENS) -> None:
        for limit in reservation.limits:
            if limit.kind is kind and amount:
                self._window(limit.key, slot).add(slot, amount)

    def _window(self, key: str, slot: int) -> _Window:
        window = self._windows.setdefault(key, _Window())
        window.forget(slot - self.timing.window)
        return window

    def _running(self, key: str, now_ms: int) -> dict[str, int]:
        leases = self._leases.setdefault(key, {})
        while leases and leases[first := next(iter(leases))] <= now_ms:
            del leases[first]
        return leases

    def _mark(self, reservation: Reservation, now_ms: int) -> _Mark | None:
        mark = self._marks.get(reservation.work_id)
        return mark if mark is not None and mark.expires_ms > now_ms else None
