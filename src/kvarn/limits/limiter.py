"""Takes orders in, renews them while they run, and settles them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from kvarn.config.platform import LimitsConfig
from kvarn.limits.counts import Timing
from kvarn.limits.local import LocalCounts
from kvarn.limits.orders import Keeper, LimitsAwayError, Order, ServerCounts, Verdict
from kvarn.limits.redis_scripts import RedisScripts
from kvarn.limits.shared import SharedCounts
from kvarn.observe.limits import LimitMetrics

_RENEWALS = 3
"""Renewals in the life of a lease: two may be lost."""

_log = logging.getLogger("kvarn.limits")


class Hold:
    """An order that was taken in; settle it once the work is over."""

    __slots__ = ("_keeper", "_limiter", "order", "used", "verdict")

    def __init__(self, limiter: Limiter, keeper: Keeper, verdict: Verdict, used: Callable[[], int]) -> None:
        self._limiter = limiter
        self._keeper = keeper
        self.order = verdict.order
        self.verdict = verdict
        self.used = used
        """Tokens used so far."""

    def renew(self) -> None:
        """Say that it still runs."""
        self._keeper.renew(self.order, self.used())

    def settle(self, used: int, *, whole: bool = False) -> None:
        """It is over and used so many tokens; `whole` gives the request back too."""
        self._limiter.release(self)
        self._keeper.settle(self.order, used, whole=whole)


class Limiter:
    """The limits of one gateway, in the process or shared through Redis.

    Args:
        config: Where counts are kept, and what is done while Redis is away.
        metrics: Where Redis' state is shown.
        timing: How long things count.
        clock: Monotonic seconds.
        counts: Where this server counts without Redis. Default: in the process.

    Raises:
        ConfigError: The URL of Redis cannot be used.
    """

    def __init__(
        self,
        config: LimitsConfig,
        metrics: LimitMetrics,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        counts: ServerCounts | None = None,
    ) -> None:
        self._timing = timing or Timing()
        self._when_away = config.when_away
        self._local = counts or LocalCounts(self._timing, clock)
        self.redis: RedisScripts | None = None
        """Where counts are shared; None: they are not."""
        self._shared: SharedCounts | None = None
        if config.redis_url is not None:
            self.redis = RedisScripts(config.redis_url, config.timeout_s, self._timing.lease_ms / 1000, metrics)
            self._shared = SharedCounts(self.redis, self._timing, metrics)
        self._holds: set[Hold] = set()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def away(self) -> bool:
        """Whether counts are configured to be in Redis, and it does not answer."""
        return self.redis is not None and self.redis.away

    async def start(self) -> None:
        """Connect to Redis, where there is one, and renew what runs from now on."""
        if self.redis is not None:
            await self.redis.start()
        self._renewing = asyncio.create_task(self._renew())

    async def stop(self) -> None:
        """End what `start` began; settlements under way are sent first. May be called again."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.wait({self._renewing})
        self._renewing = None
        if self.redis is not None:
            await self.redis.stop()

    async def take(self, order: Order, used: Callable[[], int] = lambda: 0) -> Hold | Verdict:
        """Take an order in, if every bound has room for it; otherwise count nothing.

        Args:
            order: What is asked for.
            used: Tells the tokens used so far, for as long as the work runs.

        Returns:
            A hold, or the verdict that refused it.

        Raises:
            LimitsAwayError: Redis is away and the configuration says `closed`.
        """
        keeper: Keeper = self._local if self._shared is None else self._shared
        try:
            verdict = await keeper.take(order)
        except LimitsAwayError:
            if self._when_away == "closed":
                raise
            keeper = self._local
            verdict = await keeper.take(order)
        if not verdict.admitted:
            return verdict
        hold = Hold(self, keeper, verdict, used)
        self._holds.add(hold)
        return hold

    def release(self, hold: Hold) -> None:
        """Stop renewing; for `Hold.settle`."""
        self._holds.discard(hold)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._timing.lease_ms / 1000 / _RENEWALS)
            for hold in list(self._holds):
                hold.renew()
            self._local.sweep()
