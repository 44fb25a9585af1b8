"""Makes reservations, renews them while their requests run, and settles them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvarn.config.platform import LimitsConfig
from kvarn.jobs.periodic import Periodic
from kvarn.limits.backend import CountsBackend
from kvarn.limits.budgets import BudgetTracker
from kvarn.limits.counts import Counts, Timing
from kvarn.limits.types import Decision, LimitsAwayError, Reservation, Update
from kvarn.observe.limits import LimitMetrics

if TYPE_CHECKING:
    from kvarn.limits.redis_counts import RedisCounts

_RENEWALS = 6
"""Renewals in the life of a lease: several may be lost, and a Redis that starts empty soon knows what is held."""


class ActiveReservation:
    """A reservation that was admitted; settle it once its request has ended."""

    __slots__ = ("_backends", "_limiter", "decision", "reservation", "used")

    def __init__(
        self,
        limiter: Limiter,
        backend: CountsBackend,
        reservation: Reservation,
        decision: Decision,
        used: Callable[[], int],
    ) -> None:
        self._limiter = limiter
        self._backends = [backend]
        """Backends that know of it: another one after Redis went away or came back."""
        self.reservation = reservation
        self.decision = decision
        self.used = used
        """Tokens used so far."""

    def renew(self) -> None:
        """Tell the present backend that its request still runs."""
        backend = self._limiter.backend
        if backend not in self._backends:
            self._backends.append(backend)
        backend.update(Update(self._limiter.budgets.refreshed(self.reservation), self.used(), ended=False))

    def settle(self, used: int, *, whole: bool = False) -> None:
        """Its request has ended and has used so many tokens; `whole` gives the request back too."""
        self._limiter.active.discard(self)
        update = Update(self._limiter.budgets.refreshed(self.reservation), used, whole=whole)
        for backend in self._backends:
            backend.update(update)


class Limiter:
    """The limits and budgets of one gateway, counted in the process or shared.

    Args:
        config: Where counts are kept, and what is done while Redis is away.
        metrics: Where Redis' state is shown.
        timing: How long things count.
        local: Where this server counts without Redis. Default: in the process.

    Raises:
        ConfigError: The URL of Redis cannot be used.
    """

    def __init__(
        self,
        config: LimitsConfig,
        metrics: LimitMetrics,
        timing: Timing | None = None,
        local: CountsBackend | None = None,
    ) -> None:
        timing = timing or Timing()
        self.budgets = BudgetTracker()
        self.budgets.on_read = lambda: self._tell_unread(changed=True)
        self.active: set[ActiveReservation] = set()
        self._when_away = config.when_away
        self._local = Counts(timing) if local is None else local
        self._redis: RedisCounts | None = None
        if config.redis_url is not None:
            from kvarn.limits.redis_counts import RedisCounts  # an extra

            self._redis = RedisCounts(config.redis_url, config.timeout_s, timing, metrics)
            self._redis.on_change = self._renew
        self._renewing = Periodic("renewals of limits", self._renew, timing.lease_ms / 1000 / _RENEWALS)

    @property
    def away(self) -> bool:
        return self._redis is not None and self._redis.away

    @property
    def backend(self) -> CountsBackend:
        """The present place of the counts."""
        if self._redis is None or (self._redis.away and self._when_away == "open"):
            return self._local
        return self._redis

    async def start(self) -> None:
        """Connect to Redis, where there is one, and renew what runs from now on."""
        if self._redis is not None:
            await self._redis.start()
        self._renewing.start()

    async def stop(self) -> None:
        """End what `start` began; settlements under way are sent first. May be called again."""
        if not self._renewing.running:
            return
        await self._renewing.stop()
        if self._redis is not None:
            await self._redis.stop()

    async def reserve(
        self, reservation: Reservation, used: Callable[[], int] = lambda: 0
    ) -> ActiveReservation | Decision:
        """Admit a reservation if every limit has room for it; otherwise count nothing.

        Args:
            reservation: What the request takes.
            used: Tells the tokens used so far, for as long as the request runs.

        Returns:
            The active reservation, or the decision that refused it.

        Raises:
            LimitsAwayError: Redis is away and the configuration says `closed`.
        """
        backend = self.backend
        try:
            decision = await backend.reserve(reservation)
        except LimitsAwayError:
            if self._when_away == "closed" or backend is self._local:
                raise
            backend = self._local
            decision = await backend.reserve(reservation)
        if not decision.admitted:
            return decision
        active = ActiveReservation(self, backend, reservation, decision, used)
        self.active.add(active)
        return active

    def _renew(self) -> None:
        for active in list(self.active):
            active.renew()
        self._tell_unread(changed=False)

    def _tell_unread(self, *, changed: bool) -> None:
        for reservation in self.budgets.held(changed=changed):
            self.backend.update(Update(reservation, ended=False))
