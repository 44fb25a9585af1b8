"""A budget for retries: a share of all requests, so that retries never multiply an overload."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.routing.window import SlidingCounts

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
