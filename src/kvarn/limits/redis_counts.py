"""Limits counted in one Redis: over one connection, in order, many calls in a round trip; and while Redis is away."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.load import ConfigError
from kvarn.limits.counts import Timing
from kvarn.limits.script import DIGEST, SCRIPT, script_input
from kvarn.limits.types import Decision, Kind, Limit, LimitsAwayError, Reservation, Spending, Update
from kvarn.observe.limits import LimitMetrics

_MAX_WAITED, _MAX_UNWAITED = 512, 128
"""Calls sent in one round trip, of those a caller waits for and of the others: few of these, so that no caller waits
long behind them."""
_MAX_OWED = 20_000
"""Calls kept for which no caller waits; the oldest are given up first."""
_FIRST_PROBE_S, _LAST_PROBE_S = 0.1, 1.0
_STALL_S = 0.05
"""A timer that fires so late says that this process was held up, not Redis."""
_PROBE = Reservation(
    "probe",
    "kvarn",
    (
        Limit(Kind.REQUESTS, "kvarn:limits:{kvarn}:probe", 1),
        Limit(Kind.BUDGET, "kvarn:budgets:{kvarn}:probe", 1, spending=Spending("total", 0, "gw_probe", 0)),
    ),
    0,
)

ResultT = TypeVar("ResultT")

_log = logging.getLogger("kvarn.limits")
_decoder = msgspec.msgpack.Decoder(Decision)


@dataclass(slots=True)
class _Call:
    """One run of the script."""

    command: tuple[Any, ...]
    reply: asyncio.Future[bytes] | None = None
    """Set once it is sent for a caller that waits."""
    called: float = field(default_factory=SYSTEM_CLOCK.now)


class RedisCounts:
    """A `CountsBackend` in one Redis.

    All calls go through one connection, as many in a round trip as have gathered during the one before. A call that is
    waited for is answered within `timeout_s`, whatever else there is to send. The others go in the order in which they
    were made, and before what is called after them: a settlement is overtaken by a later reservation only where very
    many have piled up.

    The first failure means that Redis is away: from then on reservations are refused at once, while a probe asks until
    Redis does the whole work again. Settlements are kept for that moment, for the life of a lease: later they would
    have no effect. A call that Redis refuses while it runs the probes is given up alone.

    Args:
        url: `redis://...`, `rediss://...` or `unix://...`.
        timeout_s: Seconds a call may take.
        timing: How long things count.
        metrics: Where Redis' state is shown.

    Raises:
        ConfigError: The URL cannot be used.
    """

    def __init__(self, url: str, timeout_s: float, timing: Timing, metrics: LimitMetrics) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when Redis has gone away, and when it is back."""
        self._timeout_s = timeout_s
        self._timing = timing
        probes = Update(_PROBE, ended=False), Update(_PROBE)
        self._probes = [self._call("settle" if probe.ended else "renew", probe) for probe in probes]
        self._metrics = metrics
        try:
            # No retries by the client: a reservation sent twice would be made twice.
            pool: Any = ConnectionPool.from_url(url, retry=Retry(NoBackoff(), 0))
        except ValueError as error:
            raise ConfigError(f"limits.redis_url cannot be used: {error}") from None
        self._connection = pool.make_connection()
        """By itself: a pool and a pipeline around it would cost more than the calls."""
        self._waited: deque[_Call] = deque()
        self._owed: deque[_Call] = deque()
        """Calls for which no caller waits."""
        self._sender: asyncio.Task[None] | None = None
        self._prober: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def away(self) -> bool:
        return self._prober is not None

    async def start(self) -> None:
        """Connect; where Redis is away, log it and go on asking in the background."""
        try:
            await _until(SYSTEM_CLOCK.now() + self._timeout_s, self._run_probes())
        except (RedisError, OSError, TimeoutError) as error:
            self._go_away(error)

    async def stop(self) -> None:
        """Send what is still to be sent, then close the connection for good."""
        self._stopped = True
        self._start_sender()
        if self._sender is not None:
            await asyncio.wait({self._sender})
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait({self._prober})
        if self._owed:
            _log.warning("stopped while Redis is away: %d settlements are lost", len(self._owed))
        await self._connection.disconnect()

    async def reserve(self, reservation: Reservation) -> Decision:
        """Admit a reservation if every limit has room for it; otherwise count nothing.

        Raises:
            LimitsAwayError: Redis does not answer, or refuses the call. Should it have admitted the reservation all
                the same, it is given back.
        """
        if self.away or self._stopped:
            raise LimitsAwayError("Redis is away")
        call = self._call("reserve", Update(reservation))
        call.reply = asyncio.get_running_loop().create_future()
        self._waited.append(call)
        self._start_sender()
        try:
            reply = await call.reply
        except (LimitsAwayError, asyncio.CancelledError):
            self.update(Update(reservation, whole=True))
            raise
        self._metrics.redis_seconds.observe(SYSTEM_CLOCK.now() - call.called)
        return _decoder.decode(reply)

    def update(self, update: Update) -> None:
        """Renew or settle a reservation. Settlements are kept while Redis is away; a renewal is not, since the next one
        says the same."""
        if self._stopped:
            self._metrics.lost.inc()
            return
        if self.away and not update.ended:
            return
        if len(self._owed) >= _MAX_OWED:
            self._owed.popleft()
            self._metrics.lost.inc()
        self._owed.append(self._call("settle" if update.ended else "renew", update))
        if self.away:
            self._metrics.owed.set(len(self._owed))
        else:
            self._start_sender()

    def _call(self, operation: str, update: Update) -> _Call:
        keys, argument = script_input(operation, update, self._timing)
        return _Call(("EVALSHA", DIGEST, len(keys), *keys, argument))

    def _start_sender(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        unwaited: list[_Call] = []
        waited: list[_Call] = []
        try:
            while (self._owed or self._waited) and not self.away:
                unwaited = _first(self._owed, _MAX_UNWAITED)
                # A caller that no longer waits has made sure that nothing comes of its call.
                waited = [call for call in _first(self._waited, _MAX_WAITED) if call.reply and not call.reply.done()]
                if unwaited or waited:
                    await self._send_batch(unwaited, waited)
        except Exception as error:  # whatever it was: no caller may wait for ever
            self._owed.extendleft(reversed(unwaited))
            self._waited.extendleft(reversed(waited))
            self._go_away(error)

    async def _send_batch(self, unwaited: Sequence[_Call], waited: Sequence[_Call]) -> None:
        """One round trip, over before the caller who has waited longest has waited too long."""
        began = waited[0].called if waited else SYSTEM_CLOCK.now()
        replies = await _until(began + self._timeout_s, self._run([*unwaited, *waited]))
        refused = [reply for reply in replies if isinstance(reply, Exception)]
        if refused:
            _log.error("Redis refuses %d of %d calls, which have no effect: %s", len(refused), len(replies), refused[0])
        for call, reply in zip(waited, replies[len(unwaited) :], strict=True):
            if call.reply is None or call.reply.done():
                continue
            if isinstance(reply, Exception):
                call.reply.set_exception(LimitsAwayError(str(reply)))
            else:
                call.reply.set_result(reply)

    async def _run_probes(self) -> None:
        for reply in await self._evaluate(self._probes):
            if isinstance(reply, Exception):
                raise reply

    async def _run(self, batch: Sequence[_Call]) -> list[Any]:
        """The reply to each call, or its error. Raises if Redis refuses the probes too, not only some of the calls."""
        replies = await self._evaluate(batch)
        if any(isinstance(reply, Exception) for reply in replies):
            await self._run_probes()
        return replies

    async def _evaluate(self, batch: Sequence[_Call]) -> list[Any]:
        replies = await self._exchange(*[call.command for call in batch])
        missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            again = await self._exchange(("SCRIPT LOAD", SCRIPT), *[batch[index].command for index in missing])
            for index, reply in zip(missing, again[1:], strict=True):
                replies[index] = reply
        return replies

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

    def _go_away(self, error: Exception) -> None:
        """Fail what waits, keep what need not wait, and begin to ask whether Redis is back."""
        self._metrics.redis_away.set(1)
        self._metrics.owed.set(len(self._owed))
        reason = str(error) or f"{type(error).__name__} after {self._timeout_s:g} s"
        _log.warning("Redis is away, limits and budgets are not shared until it is back: %s", reason)
        self._prober = asyncio.create_task(self._probe())
        while self._waited:
            call = self._waited.popleft()
            if call.reply is not None and not call.reply.done():
                call.reply.set_exception(LimitsAwayError(reason))
        self.on_change()

    async def _probe(self) -> None:
        pause = _FIRST_PROBE_S
        while self._prober is not None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PROBE_S)
            try:
                await self._connection.disconnect(nowait=True)
                await _until(SYSTEM_CLOCK.now() + self._timeout_s, self._run_probes())
            except Exception:  # whatever it was, it is asked again: nothing else would ask
                self._forget_old()
            else:
                self._come_back()

    def _come_back(self) -> None:
        self._forget_old()
        self._prober = None
        self._metrics.redis_away.set(0)
        self._metrics.owed.set(0)
        _log.info("Redis is back, limits and budgets are shared again")
        self._start_sender()
        self.on_change()

    def _forget_old(self) -> None:
        """Give up settlements whose marks have run out: they would have no effect."""
        oldest = SYSTEM_CLOCK.now() - self._timing.lease_ms / 1000
        while self._owed and self._owed[0].called < oldest:
            self._owed.popleft()
            self._metrics.lost.inc()
        self._metrics.owed.set(len(self._owed))


def _first(calls: deque[_Call], count: int) -> list[_Call]:
    """Take the oldest out."""
    return [calls.popleft() for _ in range(min(len(calls), count))]


async def _until(deadline: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await work until a moment of the monotonic clock, which is the loop's. If this process was held up past it, an
    unread reply may have come: the work gets a moment more. Raises TimeoutError once the work is cancelled."""
    loop = asyncio.get_running_loop()

    def expire() -> None:
        now = SYSTEM_CLOCK.now()
        limit.reschedule(now + _STALL_S if now > deadline + _STALL_S else now)

    async with asyncio.timeout(None) as limit:
        timer = loop.call_at(deadline, expire)
        try:
            return await work
        finally:
            timer.cancel()
