"""What the gateway processes of one server count together: in the main process, which the others call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry

from kvarn.gateway.processes.channel import Channel, ChannelClosedError, Handler
from kvarn.limits.counts import Timing
from kvarn.limits.local import LocalCounts
from kvarn.limits.orders import LimitsAwayError, Order, ServerCounts, Verdict
from kvarn.limits.redis_scripts import Call, ScriptRunner
from kvarn.metering.budget_counts import BudgetCounts

_TAKE, _RENEW, _SETTLE, _BUDGETS = "limits.take", "limits.renew", "limits.settle", "budgets.run"

_encode = msgspec.msgpack.encode
_order_decoder = msgspec.msgpack.Decoder(Order)
_renewal_decoder = msgspec.msgpack.Decoder(tuple[Order, int])
_settlement_decoder = msgspec.msgpack.Decoder(tuple[Order, int, bool])
_verdict_decoder = msgspec.msgpack.Decoder(Verdict)
_script_decoder = msgspec.msgpack.Decoder(tuple[list[str], bytes])


@dataclass(frozen=True, slots=True)
class SharedState:
    """What one gateway process shares with the others of its server."""

    counts: ServerCounts
    """Of limits."""
    budgets: ScriptRunner
    """Where requests in flight reserve of budgets."""
    metrics: Callable[[], Awaitable[CollectorRegistry]]
    """The metrics of all processes."""
    is_main: bool
    """Whether this is the process that supervises the engines, and shows their metrics."""


class LocalBudgets:
    """Budgets counted in this process; a `ScriptRunner`."""

    away = False
    longest_unnoticed_s = 0.0

    def __init__(self, counts: BudgetCounts) -> None:
        self._counts = counts
        self.probes: list[Call] = []
        self.when_back: list[Callable[[], None]] = []

    async def ask(self, call: Call) -> bytes:
        """What the operation answers."""
        return self._counts.run(call.keys, call.argument)

    def send(self, call: Call) -> None:
        """Run an operation whose answer nobody needs."""
        self._counts.run(call.keys, call.argument)


class RemoteBudgets:
    """Budgets counted in the main process; a `ScriptRunner`."""

    away = False
    longest_unnoticed_s = 0.0

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.probes: list[Call] = []
        self.when_back: list[Callable[[], None]] = []

    async def ask(self, call: Call) -> bytes:
        """What the operation answers.

        Raises:
            LimitsAwayError: The main process is gone; this one ends too.
        """
        call.reply = self._channel.begin(_BUDGETS, _encode((call.keys, call.argument)))
        try:
            return await call.reply
        except ChannelClosedError as error:
            raise LimitsAwayError(str(error)) from None

    def send(self, call: Call) -> None:
        """Run an operation whose answer nobody needs."""
        self._channel.send(_BUDGETS, _encode((call.keys, call.argument)))


class RemoteCounts:
    """Limits counted in the main process; a `Keeper`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def take(self, order: Order) -> Verdict:
        """Take an order in, if every bound has room for it; otherwise count nothing.

        Raises:
            LimitsAwayError: The main process is gone; this one ends too.
        """
        try:
            answer = await self._channel.call(_TAKE, _encode(order))
        except asyncio.CancelledError:  # it was sent, and will have been taken
            self.settle(order, 0, whole=True)
            raise
        except ChannelClosedError as error:
            raise LimitsAwayError(str(error)) from None
        return _verdict_decoder.decode(answer)

    def renew(self, order: Order, used: int) -> None:
        """The work still runs."""
        self._channel.send(_RENEW, _encode((order, used)))

    def settle(self, order: Order, used: int, *, whole: bool = False) -> None:
        """The work is over."""
        self._channel.send(_SETTLE, _encode((order, used, whole)))

    def sweep(self) -> None:
        """The main process does it."""


class MainCounts:
    """The counts of all processes, in the main one."""

    def __init__(self) -> None:
        self.limits = LocalCounts(Timing())
        self.budgets = BudgetCounts()


class ProcessCounts:
    """The counts of the main process, as one other process calls them."""

    def __init__(self, counts: MainCounts) -> None:
        self._limits, self._budgets = counts.limits, counts.budgets
        self._open: dict[str, tuple[Order, int]] = {}
        """What its running requests were charged, by work id."""

    def handlers(self) -> dict[str, Handler]:
        """What the process may call."""
        return {_TAKE: self._take, _RENEW: self._renew, _SETTLE: self._settle, _BUDGETS: self._run_budgets}

    def close(self) -> None:
        """The process is gone: its requests run no more, and what they were charged stays charged."""
        for order, charged in self._open.values():
            self._limits.settle(order, charged)

    def _take(self, body: bytes) -> bytes:
        verdict = self._limits.take_now(order := _order_decoder.decode(body))
        if verdict.admitted:
            self._open[order.work_id] = (order, order.tokens)
        return _encode(verdict)

    def _renew(self, body: bytes) -> None:
        order, used = _renewal_decoder.decode(body)
        self._open[order.work_id] = (order, max(order.tokens, used))
        self._limits.renew(order, used)

    def _settle(self, body: bytes) -> None:
        order, used, whole = _settlement_decoder.decode(body)
        self._open.pop(order.work_id, None)
        self._limits.settle(order, used, whole=whole)

    def _run_budgets(self, body: bytes) -> bytes:
        return self._budgets.run(*_script_decoder.decode(body))
