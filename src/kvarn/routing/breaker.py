"""Circuit breakers and retry budgets; the clock is passed in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from kvarn.config.external import BreakerConfig

_SLICES = 10  # a window moves in steps of a tenth of its length


class SlidingCounts:
    """Counts by kind (numbers from 0) over the last `window_s` seconds, exact to a tenth of it. Times must not go
    back."""

    def __init__(self, window_s: float, kinds: int) -> None:
        self._slice_s = window_s / _SLICES
        self._slices: deque[tuple[int, list[int]]] = deque()  # number of the slice, oldest first, and the counts in it
        self._totals = [0] * kinds

    def add(self, kind: int, now: float) -> None:
        self._drop_old(now)
        number = self._number(now)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, [0] * len(self._totals)))
        self._slices[-1][1][kind] += 1
        self._totals[kind] += 1

    def totals(self, now: float) -> list[int]:
        self._drop_old(now)
        return list(self._totals)

    def clear(self) -> None:
        self._slices.clear()
        self._totals = [0] * len(self._totals)

    def _number(self, now: float) -> int:
        return int(now // self._slice_s)

    def _drop_old(self, now: float) -> None:
        oldest = self._number(now) - _SLICES + 1
        while self._slices and self._slices[0][0] < oldest:
            for kind, count in enumerate(self._slices.popleft()[1]):
                self._totals[kind] -= count


_SUCCEEDED, _FAILED = 0, 1


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # a few go through as trials


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """Conditions to open, and for how long."""

    window_s: float = 30.0  # results of the last so many seconds count
    min_requests: int = 5  # it does not open on fewer results
    error_rate: float = 0.5  # share of failures from which on it opens; in (0, 1]
    open_s: float = 5.0  # seconds that it stays open; doubles with each failed trial in a row
    max_open_s: float = 60.0
    trials: int = 1  # requests that go through at once when it is half open; when as many have succeeded, it closes


def breaker_rules(config: BreakerConfig) -> BreakerRules:
    return BreakerRules(**config.model_dump())


@dataclass(frozen=True, slots=True)
class Permit:
    """A request was let through; its result must be given to the breaker."""

    epoch: int  # the breaker has changed its state so many times


class CircuitBreaker:
    """One breaker. Times are monotonic seconds and must not go back. Each permit must be given back exactly once, by
    `succeeded`, `failed` or `cancelled`. Results of requests that began before the breaker's latest change of state are
    ignored."""

    def __init__(self, rules: BreakerRules) -> None:
        self.rules = rules
        self._counts = SlidingCounts(rules.window_s, 2)
        self._epoch = 0
        self._opened_at: float | None = None  # None while it is closed
        self._opened_in_a_row = 0
        self._trials_running = 0
        self._trials_succeeded = 0

    def state(self, now: float) -> BreakerState:
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._opened_at + self._open_s else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether `admit` would let a request through."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (
            state is BreakerState.HALF_OPEN and self._trials_running + self._trials_succeeded < self.rules.trials
        )

    def retry_after_s(self, now: float) -> float:
        """Seconds until a request may go through again; 0 where one may now, or a trial is under way."""
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + self._open_s - now)

    def admit(self, now: float) -> Permit | None:
        """Let a request through; None where it may not."""
        if not self.allows(now):
            return None
        if self._opened_at is not None:
            self._trials_running += 1
        return Permit(self._epoch)

    def succeeded(self, permit: Permit, now: float) -> None:
        """The request was answered."""
        if permit.epoch != self._epoch:
            return
        if self._opened_at is None:
            self._counts.add(_SUCCEEDED, now)
            return
        self._trials_running -= 1
        self._trials_succeeded += 1
        if self._trials_succeeded >= self.rules.trials:
            self._opened_at, self._opened_in_a_row = None, 0
            self._change()

    def failed(self, permit: Permit, now: float) -> None:
        """The request failed through the other side's fault."""
        if permit.epoch != self._epoch:
            return
        if self._opened_at is not None:
            self._open(now)
            return
        self._counts.add(_FAILED, now)
        succeeded, failed = self._counts.totals(now)
        total = succeeded + failed
        if total >= self.rules.min_requests and failed >= self.rules.error_rate * total:
            self._open(now)

    def cancelled(self, permit: Permit) -> None:
        """The request says nothing of the other side: its client left, or was at fault."""
        if permit.epoch == self._epoch and self._opened_at is not None:
            self._trials_running -= 1

    @property
    def _open_s(self) -> float:
        doubled: float = self.rules.open_s * 2.0 ** min(self._opened_in_a_row - 1, 30)
        return min(doubled, self.rules.max_open_s)

    def _open(self, now: float) -> None:
        self._opened_at = now
        self._opened_in_a_row += 1
        self._change()

    def _change(self) -> None:
        self._epoch += 1
        self._counts.clear()
        self._trials_running = self._trials_succeeded = 0


_REQUEST, _RETRY = 0, 1


@dataclass(frozen=True, slots=True)
class RetryRules:
    share: float = 0.2  # share of the requests in the window
    min_retries: int = 3  # allowed in each window, however few requests there are
    window_s: float = 10.0


class RetryBudget:
    """The retries of one model (the idea is Finagle's). Times are monotonic seconds and must not go back."""

    def __init__(self, rules: RetryRules) -> None:
        self._rules = rules
        self._counts = SlidingCounts(rules.window_s, 2)

    def request(self, now: float) -> None:
        self._counts.add(_REQUEST, now)

    def retry(self, now: float) -> bool:
        """Whether one more retry is allowed; it is counted then."""
        requests, retries = self._counts.totals(now)
        if retries + 1 > max(self._rules.min_retries, self._rules.share * requests):
            return False
        self._counts.add(_RETRY, now)
        return True
