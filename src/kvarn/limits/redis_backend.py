"""Counts in Redis: exact over all gateways that share it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from kvarn.limits.local import Timing
from kvarn.limits.redis_scripts import RedisScripts
from kvarn.limits.scripts import Call, Script
from kvarn.limits.types import Decision, LimitsAwayError, Reservation, Usage
from kvarn.observe.limits import LimitMetrics
from kvarn.store.ids import new_id

SCRIPT = Path(__file__).with_name("counts.lua").read_text(encoding="utf-8")


class RedisBackend:
    """A `Backend` over Redis. Settlements are kept while Redis is away, for as long as they would have an effect;
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
        nothing = Reservation(new_id("probe_"), "kvarn", (), 0)
        redis.probes += [self._call("take", nothing), self._call("settle", nothing)]

    async def take(self, reservation: Reservation) -> Decision:
        """Admit a reservation if every limit has room for it; otherwise count nothing.

        Raises:
            LimitsAwayError: Redis does not answer. Should it have admitted it all the same, it is given back.
        """
        call = self._call("take", reservation)
        try:
            reply = await self._redis.ask(call)
        except (LimitsAwayError, asyncio.CancelledError):
            if call.reply is not None:  # it was sent
                self.settle(reservation, 0, whole=True)
            raise
        self._metrics.redis_seconds.observe(time.monotonic() - call.called)
        return read_decision(reservation, reply)

    def renew(self, reservation: Reservation, used: int) -> None:
        """The request still runs; not repeated where Redis is away, since the next renewal says the same."""
        if not self._redis.away:
            self._redis.send(self._call("renew", reservation, used))

    def settle(self, reservation: Reservation, used: int, *, whole: bool = False) -> None:
        """The request has ended; kept where Redis is away."""
        self._redis.send(self._call("settle", reservation, used, whole=whole))

    def sweep(self) -> None:
        """Redis does it."""

    def _call(self, operation: str, reservation: Reservation, used: int = 0, *, whole: bool = False) -> Call:
        return Call(self._script, *script_input(operation, reservation, self._timing, used, whole=whole))


def script_input(
    operation: str, reservation: Reservation, timing: Timing, used: int = 0, *, whole: bool = False
) -> tuple[list[str], bytes]:
    """Keys and argument of `counts.lua`; see there."""
    mark = f"kvarn:limits:{{{reservation.organization_id}}}:work:{reservation.work_id}"
    times = timing.slot_ms, timing.window, timing.lease_ms
    argument = [operation, *times, reservation.work_id, reservation.tokens, used, whole]
    for limit in reservation.limits:
        argument += [str(limit.kind), limit.maximum]
    return [mark, *[limit.key for limit in reservation.limits]], msgspec.msgpack.encode(argument)


def read_decision(reservation: Reservation, reply: bytes) -> Decision:
    """What the script answered."""
    admitted, *numbers = msgspec.msgpack.decode(reply)
    usages = tuple(Usage(*numbers[start : start + 3]) for start in range(0, len(numbers), 3))
    return Decision(reservation, admitted, usages)
