"""Makes reservations, renews them while their requests run, and settles them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import LimitsConfig
from kvarn.jobs.periodic import Periodic
from kvarn.limits.backend import Backend
from kvarn.limits.local import SlidingWindows, Timing
from kvarn.limits.scripts import COUNTS, LocalScripts, ScriptRunner
from kvarn.limits.types import Decision, LimitsAwayError, Reservation
from kvarn.observe.limits import LimitMetrics

if TYPE_CHECKING:
    from kvarn.limits.redis_scripts import RedisScripts

_RENEWALS = 3
"""Renewals in the life of a lease: two may be lost."""


class ActiveReservation:
    """A reservation that was admitted; settle it once its request has ended."""

    __slots__ = ("_backend", "_limiter", "decision", "reservation", "used")

    def __init__(self, limiter: Limiter, backend: Backend, decision: Decision, used: Callable[[], int]) -> None:
        self._limiter = limiter
        self._backend = backend
        self.reservation = decision.reservation
        self.decision = decision
        self.used = used
        """Tokens used so far."""

    def renew(self) -> None:
        """Its request still runs."""
        self._backend.renew(self.reservation, self.used())

    def settle(self, used: int, *, whole: bool = False) -> None:
        """Its request has ended and used so many tokens; `whole` gives the request back too."""
        self._limiter.release(self)
        self._backend.settle(self.reservation, used, whole=whole)


class Limiter:
    """The limits of one gateway, in the process or shared through Redis.

    Args:
        config: Where counts are kept, and what is done while Redis is away.
        metrics: Where Redis' state is shown.
        timing: How long things count.
        clock: Monotonic seconds.
        local: Runs the script where this server counts without Redis. Default: in the process.

    Raises:
        ConfigError: The URL of Redis cannot be used.
    """

    def __init__(
        self,
        config: LimitsConfig,
        metrics: LimitMetrics,
        timing: Timing | None = None,
        clock: Callable[[], float] = SYSTEM_CLOCK.now,
        local: ScriptRunner | None = None,
    ) -> None:
        timing = timing or Timing()
        self._when_away = config.when_away
        counted_here = local or LocalScripts({COUNTS.name: SlidingWindows(timing, clock).run})
        self._local = self._backend = Backend(counted_here, timing)
        self.redis: RedisScripts | None = None
        """Redis, if counts are shared."""
        if config.redis_url is not None:
            from kvarn.limits.redis_scripts import RedisScripts  # an extra

            self.redis = RedisScripts(config.redis_url, config.timeout_s, timing.lease_ms / 1000, metrics)
            self._backend = Backend(self.redis, timing)
        self._active: set[ActiveReservation] = set()
        self._renewing = Periodic("renewals of limits", self._renew, timing.lease_ms / 1000 / _RENEWALS)

    @property
    def away(self) -> bool:
        """Whether counts are configured to be in Redis, and it does not answer."""
        return self.redis is not None and self.redis.away

    async def start(self) -> None:
        """Connect to Redis, where there is one, and renew what runs from now on."""
        if self.redis is not None:
            await self.redis.start()
        self._renewing.start()

    async def stop(self) -> None:
        """End what `start` began; settlements under way are sent first. May be called again."""
        if not self._renewing.running:
            return
        await self._renewing.stop()
        if self.redis is not None:
            await self.redis.stop()

    async def take(self, reservation: Reservation, used: Callable[[], int] = lambda: 0) -> ActiveReservation | Decision:
        """Admit a reservation if every limit has room for it; otherwise count nothing.

        Args:
            reservation: What the request takes.
            used: Tells the tokens used so far, for as long as the request runs.

        Returns:
            The active reservation, or the decision that refused it.

        Raises:
            LimitsAwayError: Redis is away and the configuration says `closed`.
        """
        backend = self._backend
        try:
            decision = await backend.take(reservation)
        except LimitsAwayError:
            if self._when_away == "closed" or backend is self._local:
                raise
            backend = self._local
            decision = await backend.take(reservation)
        if not decision.admitted:
            return decision
        active = ActiveReservation(self, backend, decision, used)
        self._active.add(active)
        return active

    def release(self, active: ActiveReservation) -> None:
        """Stop renewing; for `ActiveReservation.settle`."""
        self._active.discard(active)

    def _renew(self) -> None:
        for active in list(self._active):
            active.renew()
