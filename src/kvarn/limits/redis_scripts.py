"""Scripts run in Redis: over one connection, in order, many in a round trip; and what is done while Redis is away."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from kvarn.config.load import ConfigError
from kvarn.limits.orders import LimitsAwayError
from kvarn.observe.limits import LimitMetrics

_MOST_AT_ONCE = 512
"""Calls sent in one round trip."""
_MOST_OWED = 20_000
"""Calls kept while Redis is away; the oldest are given up first."""
_FIRST_PROBE_S, _LAST_PROBE_S = 0.1, 1.0
_LINGER_S = 0.001
"""What nobody waits for waits so long for a call to travel with: the next request of the same client shall not find a
round trip under way."""
_STALL_S = 0.05
"""A timer that fires so late tells of this process, not of Redis."""

ResultT = TypeVar("ResultT")

_log = logging.getLogger("kvarn.limits")


class Script:
    """A script of Redis, known there by the digest of its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(slots=True)
class Call:
    """One run of a script."""

    script: Script
    keys: list[str]
    argument: bytes
    reply: asyncio.Future[bytes] | None = None
    """None: nobody waits for it."""
    asked: float = field(default_factory=time.monotonic)


class RedisScripts:
    """Runs scripts in one Redis for one gateway.

    All calls go through one connection in the order in which they were asked, as many in a round trip as have gathered
    during the one before: a settlement is never overtaken by the order that comes after it. No call takes longer than
    `timeout_s`. The first failure means that Redis is away: from then on whoever would wait is told so at once, while a
    probe asks until Redis does the whole work again. What nobody waits for is kept for that moment, for `keep_s`: it
    must do no harm where it comes twice.

    Args:
        url: `redis://...`, `rediss://...` or `unix://...`.
        timeout_s: Seconds a call may take.
        keep_s: Seconds after which a call that was kept would have no effect.
        metrics: Where Redis' state is shown.

    Raises:
        ConfigError: The URL cannot be used.
    """

    def __init__(self, url: str, timeout_s: float, keep_s: float, metrics: LimitMetrics) -> None:
        self._timeout_s = timeout_s
        self._keep_s = keep_s
        self._metrics = metrics
        try:
            # No retries by the client: an order sent twice would be taken twice.
            pool: Any = ConnectionPool.from_url(url, retry=Retry(NoBackoff(), 0))
        except ValueError as error:
            raise ConfigError(f"limits.redis_url cannot be used: {error}") from None
        self._connection = pool.make_connection()
        """By itself: a pool and a pipeline around it would cost more than the calls."""
        self.probes: list[Call] = []
        """What is tried to know whether Redis is there, and can be written to."""
        self.when_back: list[Callable[[], None]] = []
        """Called when Redis is back and has been sent what was kept: to say how things stand by now."""
        self._queue: deque[Call] = deque()
        self._owed: deque[Call] = deque(maxlen=_MOST_OWED)
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

    async def ask(self, call: Call) -> bytes:
        """What a script answers.

        Raises:
            LimitsAwayError: Redis does not answer. It may have run all the same.
        """
        if self.away:
            raise LimitsAwayError("Redis is away")
        call.reply = asyncio.get_running_loop().create_future()
        self.send(call)
        return await call.reply

    def send(self, call: Call) -> None:
        """Run a script for whose answer nobody waits; kept where Redis is away."""
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

    async def _send_batch(self, batch: list[Call]) -> None:
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

    async def _run(self, batch: Sequence[Call]) -> list[bytes]:
        """The replies of the script. Raises what the first call that failed raised."""
        replies = await self._run_known(batch)
        missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            await self._load([*{batch[i].script.digest: batch[i].script for i in missing}.values()])
            for index, reply in zip(missing, await self._run_known([batch[i] for i in missing]), strict=True):
                replies[index] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _run_known(self, batch: Sequence[Call]) -> list[Any]:
        commands = [("EVALSHA", call.script.digest, len(call.keys), *call.keys, call.argument) for call in batch]
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

    async def _load(self, scripts: Sequence[Script]) -> None:
        for reply in await self._exchange(*[("SCRIPT LOAD", script.text) for script in scripts]):
            if isinstance(reply, Exception):
                raise reply

    async def _try_all(self) -> None:
        await self._run(self.probes)

    def _go_away(self, error: Exception) -> None:
        """Fail what waits, keep what need not wait, and begin to ask whether Redis is back."""
        self._metrics.redis_away.set(1)
        reason = str(error) or f"{type(error).__name__} after {self._timeout_s:g} s"
        _log.warning("Redis is away, limits and budgets are not shared until it is back: %s", reason)
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
        _log.info("Redis is back, limits and budgets are shared again")
        owed, self._owed = self._owed, deque(maxlen=_MOST_OWED)
        for call in owed:
            call.asked = time.monotonic()
            self.send(call)
        for tell in self.when_back:
            tell()

    def _owe(self, call: Call) -> None:
        if len(self._owed) == _MOST_OWED:
            self._metrics.lost.inc()
        self._owed.append(call)
        self._metrics.owed.set(len(self._owed))

    def _forget_old(self) -> None:
        """Give up settlements whose marks have run out: they would have no effect."""
        oldest = time.monotonic() - self._keep_s
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
