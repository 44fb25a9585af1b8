"""One run of an engine process, from its start to its end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.process import EngineProcess
from kvarn.fleet.process_exit import describe_exit, exit_of
from kvarn.replica.addresses import engine_address, supervisor_address
from kvarn.replica.transport import ClientTransport
from kvarn.wire.messages import Failed, FromEngine, Heartbeat, Progress, Ready, ToEngine

_LAST_MESSAGES_S = 0.05
"""After the process has ended, its messages are read until none has come for so long."""


class EngineRun:
    """Reads the messages of a launched process. Kills it where no heartbeat comes, a step or the start takes too long,
    or a message cannot be read.

    Args:
        process: The process.
        config: Its time limits.
        on_message: Given each report of its start.
    """

    def __init__(
        self, process: EngineProcess, config: ReplicaConfig, on_message: Callable[[Progress | Ready], None]
    ) -> None:
        self.was_ready = False
        self._process = process
        self._config = config
        self._on_message = on_message
        self._received = False
        self._busy_s = 0.0
        self._failed: str | None = None
        self._unreadable: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        addresses = engine_address(process.sockets), supervisor_address(process.sockets)
        self._transport = ClientTransport(*addresses, self._handle, self._unreadable.set_result)

    def send(self, message: ToEngine) -> None:
        """Queue a message for the engine; never waits."""
        self._transport.send(message)

    async def wait(self) -> str | None:
        """Wait until the process is over; returns why it ended, None for a clean exit."""
        exited = exit_of(self._process.popen)
        watching = asyncio.create_task(self._watch())
        broken: str | None = None
        try:
            events: set[asyncio.Future[Any]] = {exited, watching, self._unreadable}
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                if watching.done():
                    broken = watching.result()
                else:
                    broken = f"the engine sent a message that cannot be read: {self._unreadable.result()}"
                self._process.popen.kill()
            status = await exited
            self._received = True
            while self._received:
                self._received = False
                await asyncio.sleep(_LAST_MESSAGES_S)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._transport.close()
        return broken or self._failed or (None if status == 0 else describe_exit(status))

    def _handle(self, message: FromEngine) -> None:
        self._received = True
        match message:
            case Heartbeat():
                self._busy_s = message.busy_s
            case Progress() | Ready():
                self.was_ready = isinstance(message, Ready)
                self._on_message(message)
            case Failed():
                self._failed = message.message

    async def _watch(self) -> str:
        """Returns why the process has to be killed.

        Silence is counted in turns of this loop, not in time: when the gateway itself was held up (or the machine
        slept), the messages that wait unread are read before the next turn.
        """
        config, loop = self._config, asyncio.get_running_loop()
        start_deadline = loop.time() + config.start_timeout_s
        tick_s = min(config.heartbeat_interval_s, config.heartbeat_timeout_s)
        allowed = math.ceil(config.heartbeat_timeout_s / tick_s)
        silent = 0
        while silent < allowed:
            await asyncio.sleep(tick_s)
            if not self.was_ready and loop.time() > start_deadline:
                return f"the engine was not ready after {config.start_timeout_s:g} s"
            if self._busy_s > config.step_timeout_s:
                return f"the engine has been in one step for more than {config.step_timeout_s:g} s"
            silent = 0 if self._received or not self.was_ready else silent + 1
            self._received = False
        return f"the engine was silent for {config.heartbeat_timeout_s:g} s"
