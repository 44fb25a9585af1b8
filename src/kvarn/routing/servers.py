"""The servers of an external model: which take requests, and which is tried next where one fails; pure, on times that
are passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from kvarn.config.external import RetriesConfig
from kvarn.routing.breaker import BreakerRules, CircuitBreaker, Permit, RetryBudget, RetryRules
from kvarn.routing.policies import order_by_rank

_PREFIX_BYTES = 2048
"""Bytes of a prompt that choose the server which has probably cached its beginning."""
_MAX_TRIES = 3
_BUSY_S = 1.0
"""For which a server is left alone that says it is busy, and not for how long."""
_LONGEST_BUSY_S = 30.0


class AttemptOutcome(StrEnum):
    ANSWERED = "answered"
    REFUSED = "refused"  # by the client's fault
    FAILED = "failed"
    TIMEOUT = "timeout"
    BUSY = "busy"
    CANCELLED = "cancelled"  # its client left


_MAY_BE_TRIED_AGAIN = (AttemptOutcome.FAILED, AttemptOutcome.TIMEOUT, AttemptOutcome.BUSY)


class Servers:
    """Breakers and retries of one model's servers. `on_breaker` is told of each server's breaker."""

    def __init__(
        self,
        rules: BreakerRules,
        retries: RetriesConfig,
        max_concurrency: int | None,
        on_breaker: Callable[[str, CircuitBreaker], None] = lambda server, breaker: None,
    ) -> None:
        self._rules = rules
        self._max_concurrency = max_concurrency
        self._on_breaker = on_breaker
        self._breakers: dict[str, CircuitBreaker] = {}
        self._busy_until: dict[str, float] = {}
        self._retries = RetryBudget(RetryRules(retries.share, retries.min_retries, retries.window_s))

    def breaker(self, server: str) -> CircuitBreaker:
        found = self._breakers.get(server)
        if found is None:
            found = self._breakers[server] = CircuitBreaker(self._rules)
            self._on_breaker(server, found)
        return found

    def order(self, key: bytes, in_flight: Mapping[str, int], now: float) -> list[str]:
        """The servers that take requests now, in the order in which they are tried. `key` is the beginning of the
        prompt; `in_flight`: the requests that each server that is ready has."""
        limit = self._max_concurrency
        loads = {
            server: count
            for server, count in in_flight.items()
            if self.breaker(server).allows(now)
            and self._busy_until.get(server, 0.0) <= now
            and (limit is None or count < limit)
        }
        return order_by_rank(key[:_PREFIX_BYTES], loads)

    def have_failed(self, ready: list[str], now: float) -> bool:
        """Whether each of these has failed too often lately; else those that take nothing are busy."""
        return all(not self.breaker(server).allows(now) for server in ready)

    def retry_after_s(self, ready: list[str], now: float) -> float:
        """Seconds after which one of these takes requests again."""
        waits = [max(self.breaker(each).retry_after_s(now), self._busy_until.get(each, 0.0) - now) for each in ready]
        return max(0.0, min(waits)) or _BUSY_S

    def ended(
        self, server: str, permit: Permit, outcome: AttemptOutcome, now: float, retry_after_s: float | None = None
    ) -> None:
        """A try is over. `retry_after_s`: as a busy server said."""
        breaker = self.breaker(server)
        match outcome:
            case AttemptOutcome.ANSWERED | AttemptOutcome.REFUSED:
                breaker.succeeded(permit, now)
            case AttemptOutcome.FAILED | AttemptOutcome.TIMEOUT:
                breaker.failed(permit, now)
            case AttemptOutcome.CANCELLED:
                breaker.cancelled(permit)
            case AttemptOutcome.BUSY:
                breaker.cancelled(permit)
                busy_s = _BUSY_S if retry_after_s is None else min(retry_after_s, _LONGEST_BUSY_S)
                self._busy_until[server] = now + busy_s

    def begin(self, key: bytes, now: float) -> ServerAttempts:
        """A request has come: the retry budget grows with it."""
        self._retries.request(now)
        return ServerAttempts(self, key, self._retries)


class ServerAttempts:
    """The servers that are tried for one request."""

    def __init__(self, servers: Servers, key: bytes, retries: RetryBudget) -> None:
        self._servers = servers
        self._key = key
        self._retries = retries
        self._tried: list[str] = []
        self._may_repeat = False

    def next(self, in_flight: Mapping[str, int], now: float) -> tuple[str, Permit] | None:
        """The server to try, and its breaker's permit; None where none is left that takes requests."""
        for server in self._candidates(in_flight, now):
            permit = self._servers.breaker(server).admit(now)
            if permit is not None:
                self._tried.append(server)
                return server, permit
        return None

    def may_go_on(self, outcome: AttemptOutcome, in_flight: Mapping[str, int], now: float, *, connected: bool) -> bool:
        """Whether another try is allowed after one that brought nothing of an answer; it is counted then. `connected`:
        else the connection failed, which the server may have closed as idle."""
        if outcome not in _MAY_BE_TRIED_AGAIN or len(self._tried) >= _MAX_TRIES:
            return False
        self._may_repeat = outcome is not AttemptOutcome.TIMEOUT and not connected
        return bool(self._candidates(in_flight, now)) and self._retries.retry(now)

    def _candidates(self, in_flight: Mapping[str, int], now: float) -> list[str]:
        """Servers not tried yet; once more the same where only the connection failed."""
        order = self._servers.order(self._key, in_flight, now)
        fresh = [server for server in order if server not in self._tried]
        if not fresh and self._may_repeat:
            return [server for server in order if self._tried.count(server) < 2]
        return fresh
