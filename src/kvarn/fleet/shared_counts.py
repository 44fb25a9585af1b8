"""Counts shared by the gateway processes of one server: kept in the main process, which the others call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry

from kvarn.fleet.channel import Channel, ChannelClosedError, Handler
from kvarn.limits.local import SlidingWindows
from kvarn.limits.scripts import COUNTS, Call, LocalScripts, ScriptRunner
from kvarn.limits.types import LimitsAwayError
from kvarn.metering.budget_counts import BudgetCounts
from kvarn.metering.budget_reservations import BUDGETS

_RUN = "scripts.run"
_decoder = msgspec.msgpack.Decoder(tuple[str, list[str], bytes])


@dataclass(frozen=True, slots=True)
class SharedState:
    """Parts that a gateway process shares with the others of its server."""

    scripts: ScriptRunner
    """Runs the scripts of limits and budgets in the main process."""
    metrics: Callable[[], Awaitable[CollectorRegistry]]
    is_main: bool
    """This process supervises the engines and shows their metrics."""


def main_scripts() -> LocalScripts:
    """The counts of all processes, in the main one."""
    return LocalScripts({COUNTS.name: SlidingWindows().run, BUDGETS.name: BudgetCounts().run})


def script_handlers(scripts: LocalScripts) -> dict[str, Handler]:
    return {_RUN: lambda body: scripts.run(*_decoder.decode(body))}


class RemoteScripts(ScriptRunner):
    """Scripts run in the main process."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    async def ask(self, call: Call) -> bytes:
        """Run a script and wait for its answer. Raises `LimitsAwayError` where the main process is gone; this one ends
        too."""
        call.reply = self._channel.begin(_RUN, _encode(call))
        try:
            return await call.reply
        except ChannelClosedError as error:
            raise LimitsAwayError(str(error)) from None

    def send(self, call: Call) -> None:
        """Run a script whose answer nobody needs."""
        self._channel.send(_RUN, _encode(call))


def _encode(call: Call) -> bytes:
    return msgspec.msgpack.encode((call.script.name, call.keys, call.argument))
