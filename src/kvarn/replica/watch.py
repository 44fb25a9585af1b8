"""Listens to one engine process and notices when it ends, falls silent or does not get ready."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

import msgspec

from kvarn.config.schema import ReplicaConfig
from kvarn.replica.inflight import InFlight
from kvarn.replica.launch import EngineProcess, describe_exit
from kvarn.replica.sockets import EngineSockets
from kvarn.wire.messages import (
    Embedded,
    EngineStats,
    Failed,
    FromEngine,
    Heartbeat,
    ModelCard,
    Progress,
    Ready,
    Refused,
    StepOutput,
)

log = logging.getLogger(__name__)


class Watch:
    """What is known of the engine: its progress, card and statistics; kept up to date by `run`."""

    def __init__(self) -> None:
        self.progress: tuple[str, float] = ("start the engine process", 0.0)
        self.card: ModelCard | None = None
        self.stats = EngineStats()
        self._ready = False
        self._heard = False
        self._busy_s = 0.0
        self._last_words: str | None = None
        self._change = asyncio.Event()

    def begin(self) -> None:
        """Forget the last process; its card stays, since the next one serves the same model."""
        self.progress = ("start the engine process", 0.0)
        self.stats = EngineStats()
        self._ready = False
        self._heard = False
        self._busy_s = 0.0
        self._last_words = None

    @property
    def was_ready(self) -> bool:
        """Whether the process has been ready."""
        return self._ready

    def notify(self) -> None:
        """Wake whoever waits in `changed`."""
        self._change.set()
        self._change = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next change of state."""
        await self._change.wait()

    async def run(
        self, process: EngineProcess, config: ReplicaConfig, inflight: InFlight, on_ready: Callable[[ModelCard], None]
    ) -> str | None:
        """Listen until the process is over; returns why it ended, None for a clean exit.

        A process that breaks its promises (silence, a step without end, no start in time, messages that cannot be read)
        is killed.
        """
        sockets = process.connect()
        ended = process.ended()
        listening = asyncio.create_task(self._listen(sockets, inflight, on_ready))
        guarding = asyncio.create_task(self._guard(config))
        try:
            events: set[asyncio.Future[Any]] = {ended, listening, guarding}
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            broken = None if ended.done() else _result_of(guarding) or _result_of(listening)
            if broken is not None:
                process.kill()
            status = await ended
        finally:
            await _cancel(listening, guarding)
        for message in await process.last_words():
            self._handle(message, inflight, on_ready)
        return broken or self._last_words or (None if status == 0 else describe_exit(status))

    async def _listen(self, sockets: EngineSockets, inflight: InFlight, on_ready: Callable[[ModelCard], None]) -> str:
        def hear(message: FromEngine) -> None:
            self._heard = True
            self._handle(message, inflight, on_ready)

        try:
            await sockets.listen(hear)
        except msgspec.DecodeError as error:
            return f"the engine sent a message that cannot be read: {error}"
        return "the engine's messages ended"

    def _handle(self, message: FromEngine, inflight: InFlight, on_ready: Callable[[ModelCard], None]) -> None:
        match message:
            case StepOutput():
                self.stats = message.stats or self.stats
                inflight.handle(message)
            case Refused() | Embedded():
                inflight.handle(message)
            case Heartbeat():
                self._busy_s = message.busy_s
            case Progress():
                self.progress = (message.stage, message.fraction)
                self.notify()
            case Ready():
                self.progress = ("ready", 1.0)
                self.card = message.card
                self._ready = True
                on_ready(message.card)
            case Failed():
                self._last_words = message.message

    async def _guard(self, config: ReplicaConfig) -> str:
        """Returns what promise the process broke.

        Silence is counted in turns of this loop, not in time: when the gateway itself was held up (or the machine
        slept), the messages that wait unread are heard before the next turn.
        """
        loop = asyncio.get_running_loop()
        start_deadline = loop.time() + config.start_timeout_s
        tick_s = min(config.heartbeat_interval_s, config.heartbeat_timeout_s)
        allowed = math.ceil(config.heartbeat_timeout_s / tick_s)
        silent = 0
        while silent < allowed:
            await asyncio.sleep(tick_s)
            if not self._ready and loop.time() > start_deadline:
                return f"the engine was not ready after {config.start_timeout_s:g} s"
            if self._busy_s > config.step_timeout_s:
                return f"the engine has been in one step for more than {config.step_timeout_s:g} s"
            silent = 0 if self._heard or not self._ready else silent + 1
            self._heard = False
        return f"the engine was silent for {config.heartbeat_timeout_s:g} s"


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _result_of(task: asyncio.Task[str]) -> str | None:
    return task.result() if task.done() else None
