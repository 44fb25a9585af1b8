"""What the gateway processes of one server count together: in the main process, which the others call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry

from kvarn.fleet.channel import Channel, ChannelClosedError, Handler
from kvarn.limits.local import LocalBackend, Timing
from kvarn.limits.scripts import Call, ScriptRunner
from kvarn.limits.types import Backend, Decision, LimitsAwayError, Reservation
from kvarn.metering.budget_counts import BudgetCounts

_TAKE, _RENEW, _SETTLE, _BUDGETS = "limits.take", "limits.renew", "limits.settle", "budgets.run"

_encode = msgspec.msgpack.encode
_reservation_decoder = msgspec.msgpack.Decoder(Reservation)
_renewal_decoder = msgspec.msgpack.Decoder(tuple[Reservation, int])
_settlement_decoder = msgspec.msgpack.Decoder(tuple[Reservation, int, bool])
_decision_decoder = msgspec.msgpack.Decoder(Decision)
_script_decoder = msgspec.msgpack.Decoder(tuple[list[str], bytes])


@dataclass(frozen=True, slots=True)
class SharedState:
    """What one gateway process shares with the others of its server."""

    counts: Backend
    """Of limits."""
    budgets: ScriptRunner
    """Where requests in flight reserve of budgets."""
    metrics: Callable[[], Awaitable[CollectorRegistry]]
    """The metrics of all processes."""
    is_main: bool
    """Whether this is the process that supervises the engines, and shows their metrics."""


class RemoteBudgets(ScriptRunner):
    """Budgets counted in the main process."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

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


class RemoteBackend:
    """Limits counted in the main process; a `Backend`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def take(self, reservation: Reservation) -> Decision:
        """See `Backend`.

        Raises:
            LimitsAwayError: The main process is gone; this one ends too.
        """
        try:
            answer = await self._channel.call(_TAKE, _encode(reservation))
        except asyncio.CancelledError:  # it was sent, and will have been taken
            self.settle(reservation, 0, whole=True)
            raise
        except ChannelClosedError as error:
            raise LimitsAwayError(str(error)) from None
        return _decision_decoder.decode(answer)

    def renew(self, reservation: Reservation, used: int) -> None:
        """The work still runs."""
        self._channel.send(_RENEW, _encode((reservation, used)))

    def settle(self, reservation: Reservation, used: int, *, whole: bool = False) -> None:
        """The work is over."""
        self._channel.send(_SETTLE, _encode((reservation, used, whole)))

    def sweep(self) -> None:
        """The main process does it."""


class MainCounts:
    """The counts of all processes, in the main one."""

    def __init__(self) -> None:
        self.limits = LocalBackend(Timing())
        self.budgets = BudgetCounts()


class ProcessCounts:
    """The counts of the main process, as one other process calls them."""

    def __init__(self, counts: MainCounts) -> None:
        self._limits, self._budgets = counts.limits, counts.budgets
        self._open: dict[str, tuple[Reservation, int]] = {}
        """What its running requests were charged, by work id."""

    def handlers(self) -> dict[str, Handler]:
        """What the process may call."""
        return {_TAKE: self._take, _RENEW: self._renew, _SETTLE: self._settle, _BUDGETS: self._run_budgets}

    def close(self) -> None:
        """The process is gone: its requests run no more, and what they were charged stays charged."""
        for reservation, charged in self._open.values():
            self._limits.settle(reservation, charged)

    def _take(self, body: bytes) -> bytes:
        decision = self._limits.take_now(reservation := _reservation_decoder.decode(body))
        if decision.admitted:
            self._open[reservation.work_id] = (reservation, reservation.tokens)
        return _encode(decision)

    def _renew(self, body: bytes) -> None:
        reservation, used = _renewal_decoder.decode(body)
        self._open[reservation.work_id] = (reservation, max(reservation.tokens, used))
        self._limits.renew(reservation, used)

    def _settle(self, body: bytes) -> None:
        reservation, used, whole = _settlement_decoder.decode(body)
        self._open.pop(reservation.work_id, None)
        self._limits.settle(reservation, used, whole=whole)

    def _run_budgets(self, body: bytes) -> bytes:
        return self._budgets.run(*_script_decoder.decode(body))
