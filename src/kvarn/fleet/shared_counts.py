"""Counts shared by the gateway processes of one server: kept in the main process, which the others call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry

from kvarn.fleet.channel import Channel, ChannelClosedError, Handlers
from kvarn.limits.local import SlidingWindows
from kvarn.limits.scripts import COUNTS, Call, LocalScripts, ScriptRunner
from kvarn.limits.types import LimitsAwayError
from kvarn.metering.budget_counts import BudgetCounts
from kvarn.metering.budget_reservations import BUDGETS


class _RunScript(msgspec.Struct, frozen=True, array_like=True):
    """Run a script of the main process; the answer is its bytes."""

    name: str
    keys: list[str]
    argument: bytes


@dataclass(frozen=True, slots=True)
class SharedState:
    scripts: ScriptRunner
    metrics: Callable[[], Awaitable[CollectorRegistry]]
    is_main: bool
    """This process supervises the engines and shows their metrics."""


def main_scripts() -> LocalScripts:
    return LocalScripts({COUNTS.name: SlidingWindows().run, BUDGETS.name: BudgetCounts().run})


def script_handlers(scripts: LocalScripts) -> Handlers:
    return {_RunScript: lambda call: scripts.run(call.name, call.keys, call.argument)}


class RemoteScripts(ScriptRunner):
    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    async def ask(self, call: Call) -> bytes:
        """Run a script and wait for its answer. Raises `LimitsAwayError` where the main process is gone; this one ends
        too."""
        call.reply = self._channel.call(_message(call), bytes)
        try:
            return await call.reply
        except ChannelClosedError as error:
            raise LimitsAwayError(str(error)) from None

    def send(self, call: Call) -> None:
        self._channel.send(_message(call))


def _message(call: Call) -> _RunScript:
    return _RunScript(call.script.name, call.keys, call.argument)
