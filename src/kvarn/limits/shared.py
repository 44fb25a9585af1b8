"""Counts in Redis: exact over all gateways that share it."""

from __future__ import annotations

import asyncio
import time

from kvarn.limits.counts import Timing
from kvarn.limits.orders import LimitsAwayError, Order, Verdict
from kvarn.limits.redis_scripts import Call, RedisScripts, Script
from kvarn.limits.script import SCRIPT, read_verdict, script_input
from kvarn.observe.limits import LimitMetrics
from kvarn.store.ids import new_id


class SharedCounts:
    """A `Keeper` over Redis. Settlements are kept while Redis is away, for as long as they would have an effect;
    repeated, they have none.

    Args:
        redis: Runs the script.
        timing: How long things count.
        metrics: Where the latency is shown.
    """

    def __init__(self, redis: RedisScripts, timing: Timing, metrics: LimitMetrics) -> None:
        self._redis = redis
        self._timing = timing
        self._metrics = metrics
        self._script = Script(SCRIPT)
        nothing = Order(new_id("probe_"), "kvarn", (), 0)
        redis.probes += [self._call("take", nothing), self._call("settle", nothing)]

    async def take(self, order: Order) -> Verdict:
        """Take an order in, if every bound has room for it; otherwise count nothing.

        Raises:
            LimitsAwayError: Redis does not answer. Should it have taken the order all the same, it is given back.
        """
        call = self._call("take", order)
        try:
            reply = await self._redis.ask(call)
        except (LimitsAwayError, asyncio.CancelledError):
            if call.reply is not None:  # it was sent
                self.settle(order, 0, whole=True)
            raise
        self._metrics.redis_seconds.observe(time.monotonic() - call.asked)
        return read_verdict(order, reply)

    def renew(self, order: Order, used: int) -> None:
        """The work still runs; not repeated where Redis is away, since the next renewal says the same."""
        if not self._redis.away:
            self._redis.send(self._call("renew", order, used))

    def settle(self, order: Order, used: int, *, whole: bool = False) -> None:
        """The work is over; kept where Redis is away."""
        self._redis.send(self._call("settle", order, used, whole=whole))

    def _call(self, operation: str, order: Order, used: int = 0, *, whole: bool = False) -> Call:
        keys, argument = script_input(operation, order, self._timing, used, whole=whole)
        return Call(self._script, keys, argument)
