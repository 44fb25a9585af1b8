"""Counts in Redis: exact over all gateways that share it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from kvarn.config.load import ConfigError
from kvarn.limits.counts import Timing
from kvarn.limits.orders import LimitsAwayError, Order, Verdict
from kvarn.limits.script import SCRIPT, read_verdict, script_input
from kvarn.observe.limits import LimitMetrics
from kvarn.store.ids import new_id

_MOST_AT_ONCE = 512
"""Calls sent in one round trip."""
_MOST_OWED = 20_000
"""Settlements kept while Redis is away; the oldest are given up first."""
_FIRST_PROBE_S, _LAST_PROBE_S = 0.1, 1.0
_LINGER_S = 0.001
"""What nobody waits for waits so long for an order to travel with: the next order of the same client shall not find a
round trip under way."""
_STALL_S = 0.05
"""A timer that fires so late tells of this process, not of Redis."""

ResultT = TypeVar("ResultT")

_log = logging.getLogger("kvarn.limits")


@dataclass(slots=True)
class _Call:
    """One run of the script."""

    keys: list[str]
    argument: bytes
    reply: asyncio.Future[bytes] | None = None
    """None: nobody waits for it."""
    asked: float = field(default_factory=time.monotonic)


class SharedCounts:
    """A `Keeper` over Redis.

    All calls of a gateway go through one connection in the order in which they were asked, as many in a round trip as
    have gathered during the one before: a settlement is never overtaken by the order that comes after it. No call takes
    longer than `timeout_s`. The first failure means that Redis is away: from then on orders fail at once, while a probe
    asks until Redis does the whole work again. Settlements are kept for that moment, for as long as they would have
    an effect; repeated, they have none.

    Args:
        url: `redis://...`, `rediss://...` or `unix://...`.
        timeout_s: Seconds a call may take.
        timing: How long things count.
        metrics: Where Redis' state and latency are shown.

    Raises:
        ConfigError: The URL cannot be used.
    """

    def __init__(self, url: str, timeout_s: float, timing: Timing, metrics: LimitMetrics) -> None:
        self._timing = timing
        self._timeout_s = timeout_s
        self._metrics = metrics
        try:
            # No retries by the client: an order sent twice would be taken twice.
            pool: Any = ConnectionPool.from_url(url, retry=Retry(NoBackoff(), 0))
        except ValueError as error:
            raise ConfigError(f"limits.redis_url cannot be used: {error}") from None
        self._connection = pool.make_connection()
        """By itself: a pool and a pipeline around it would cost more than the calls."""
        self._digest = b""
        self._queue: deque[_Call] = deque()
        self._owed: deque[_Call] = deque(maxlen=_MOST_OWED)
        self._sender: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._prober: asyncio.Task[None] | None = None

    @property
    def away(self) -> bool:
        """Whether Redis does not answer."""
        return self._prober is not None

    async def start(self) -> None:
        """Connect; where Redis is away, say so and go on asking in the background."""
        try:
            await _until(time.monotonic() + self._timeout_s, self._try_all())
        except (RedisError, OSError, TimeoutError) as error:
            self._go_away(error)

    async def stop(self) -> None:
        """Send what is still to be sent, then close the connection."""
        self._start_sender()
        if self._sender is not None:
            await asyncio.wait({self._sender})
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait({self._prober})
        if self._owed:
            _log.warning("stopped while Redis is away: %d settlements are lost", len(self._owed))
        await self._connection.disconnect()

    async def take(self, order: Order) -> Verdict:
        """Take an order in, if every bound has room for it; otherwise count nothing.

        Raises:
            LimitsAwayError: Redis does not answer. Should it have taken the order all the same, it is given back.
        """
        if self.away:
            raise LimitsAwayError("Redis is away")
        call = self._call("take", order)
        call.reply = asyncio.get_running_loop().create_future()
        self._send(call)
        try:
            reply = await call.reply
        except (LimitsAwayError, asyncio.CancelledError):
            self.settle(order, 0, whole=True)
            raise
        self._metrics.redis_seconds.observe(time.monotonic() - call.asked)
        return read_verdict(order, reply)

    def renew(self, order: Order, used: int) -> None:
        """The work still runs; not repeated where Redis is away, since the next renewal says the same."""
        if not self.away:
            self._send(self._call("renew", order, used))

    def settle(self, order: Order, used: int, *, whole: bool = False) -> None:
        """The work is over; kept where Redis is away."""
        self._send(self._call("settle", order, used, whole=whole))

    def _call(self, operation: str, order: Order, used: int = 0, *, whole: bool = False) -> _Call:
        return _Call(*script_input(operation, order, self._timing, used, whole=whole))

    def _send(self, call: _Call) -> None:
        if self.away:
            self._owe(call)
            return
        self._queue.append(call)
        if call.reply is not None:
            self._start_sender()
        elif self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._start_sender)

    def _start_sender(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_queue())

    async def _send_queue(self) -> None:
        try:
            while self._queue and not self.away:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), _MOST_AT_ONCE))]
                await self._send_batch(batch)
        finally:
            self._sender = None

    async def _send_batch(self, batch: list[_Call]) -> None:
        """One round trip, over before the longest-waiting call has waited too long."""
        try:
            replies = await _until(batch[0].asked + self._timeout_s, self._run(batch))
        except Exception as error:  # whatever it was: nobody may wait for ever
            self._queue.extendleft(reversed(batch))
            self._go_away(error)
            return
        for call, reply in zip(batch, replies, strict=True):
            if call.reply is not None and not call.reply.done():
                call.reply.set_result(reply)

    async def _run(self, batch: Sequence[_Call]) -> list[bytes]:
        """The replies of the script. Raises what the first call that failed raised."""
        replies = await self._run_known(batch)
        missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            await self._load()
            for index, reply in zip(missing, await self._run_known([batch[i] for i in missing]), strict=True):
                replies[index] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _run_known(self, batch: Sequence[_Call]) -> list[Any]:
        commands = [("EVALSHA", self._digest, len(call.keys), *call.keys, call.argument) for call in batch]
        return await self._exchange(*commands)

    async def _exchange(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in one go; the reply to each, or the error that Redis answered."""
        connection = self._connection
        await connection.connect()  # does nothing where it is
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except ResponseError as error:
                replies.append(error)
        return replies

    async def _load(self) -> None:
        (digest,) = await self._exchange(("SCRIPT LOAD", SCRIPT))
        if isinstance(digest, Exception):
            raise digest
        self._digest = digest

    async def _try_all(self) -> None:
        """Load the script and take an order of no bounds: Redis answers, and can be written to."""
        await self._load()
        order = Order(new_id("probe_"), "kvarn", (), 0)
        await self._run([self._call("take", order), self._call("settle", order)])

    def _go_away(self, error: Exception) -> None:
        """Fail what waits, keep what need not wait, and begin to ask whether Redis is back."""
        self._metrics.redis_away.set(1)
        reason = str(error) or f"{type(error).__name__} after {self._timeout_s:g} s"
        _log.warning("Redis is away, limits are not shared until it is back: %s", reason)
        self._prober = asyncio.create_task(self._probe())
        while self._queue:
            call = self._queue.popleft()
            if call.reply is None:
                self._owe(call)
            elif not call.reply.done():
                call.reply.set_exception(LimitsAwayError(reason))

    async def _probe(self) -> None:
        pause = _FIRST_PROBE_S
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PROBE_S)
            try:
                await self._connection.disconnect(nowait=True)
                await _until(time.monotonic() + self._timeout_s, self._try_all())
            except Exception:  # whatever it was: it is asked again, since nobody else would
                self._forget_old()
                continue
            break
        self._come_back()

    def _come_back(self) -> None:
        self._forget_old()
        self._prober = None
        self._metrics.redis_away.set(0)
        self._metrics.owed.set(0)
        _log.info("Redis is back, limits are shared again")
        owed, self._owed = self._owed, deque(maxlen=_MOST_OWED)
        for call in owed:
            call.asked = time.monotonic()
            self._send(call)

    def _owe(self, call: _Call) -> None:
        if len(self._owed) == _MOST_OWED:
            self._metrics.lost.inc()
        self._owed.append(call)
        self._metrics.owed.set(len(self._owed))

    def _forget_old(self) -> None:
        """Give up settlements whose marks have run out: they would have no effect."""
        oldest = time.monotonic() - self._timing.lease_ms / 1000
        while self._owed and self._owed[0].asked < oldest:
            self._owed.popleft()
            self._metrics.lost.inc()
        self._metrics.owed.set(len(self._owed))


async def _until(deadline: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run something that must be over at a moment of the monotonic clock. Where this process was itself held up till
    then, a reply may have come without having been read: it gets a moment more.

    Raises:
        TimeoutError: It was not, and has been cancelled.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    expired = granted = False
    timer: asyncio.TimerHandle

    def expire() -> None:
        nonlocal expired, granted, timer
        if not granted and time.monotonic() > deadline + _STALL_S:
            granted, timer = True, loop.call_later(_STALL_S, expire)
        else:
            expired = True
            task.cancel()

    timer = loop.call_later(max(0.0, deadline - time.monotonic()), expire)
    try:
        return await work
    except asyncio.CancelledError:
        if expired and not task.uncancel():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
