"""One run of an engine process, from its start to its end: silence, hanging steps, and starts that do not get on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.launch.launcher import LaunchedEngine
from kvarn.fleet.supervision.heartbeats import HeartbeatWatch
from kvarn.replica.session_work import SessionWork, session_work
from kvarn.replica.transport import ClientTransport
from kvarn.wire.messages import FromEngine, Leave, Progress, Ready, Stop, ToEngine
from kvarn.wire.supervision import Activate, Asleep, Drain, Failed, Heartbeat, Sleep, Supervise, Warm

_LAST_MESSAGES_S = 0.05
"""After the process has ended, its messages are read until none has come for so long."""
_KILL_S = 1.0
"""For how long a killed process's end is awaited: on another machine it may never be known."""


EngineReport = Progress | Warm | Ready | Asleep | Heartbeat
EngineCommand = Activate | Sleep | Drain | Stop


@dataclass(frozen=True, slots=True)
class RunEnd:
    reason: str | None
    """None: a clean exit."""
    gone: bool  # the process is gone for certain


class EngineRun:
    """Reads the messages of a launched process. Kills it if no heartbeat comes, a step or the start takes too long, or
    a message cannot be read. `on_message` is called with each report of the start, the first heartbeat after a computed
    step, and the heartbeats of an engine that drains and was not told to in this run's time."""

    def __init__(
        self,
        engine: LaunchedEngine,
        config: ReplicaConfig,
        on_message: Callable[[EngineReport], None],
        clock: Clock = SYSTEM_CLOCK,
        *,
        adopted: bool = False,
    ) -> None:
        self._state: Literal["", "warm", "asleep", "ready"] = ""
        self.engine = engine
        self._config = config
        self._clock = clock
        self._start_begins()
        self._on_message = on_message
        self._received = self._has_answered = False
        self._adopted = adopted
        self._busy_s = self._unheard_s = 0.0
        self._failed: str | None = None
        # Both are sent again at each heartbeat over TCP: a broken connection loses messages.
        self._command: EngineCommand | None = None
        self._gone: list[int] = []  # gateway processes that are gone
        self._unreadable: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        # A broken connection is made again, and both ends repeat themselves.
        self._transport = ClientTransport(
            engine.endpoint, engine.supervisor, self._handle, self._unreadable.set_result, watched=False
        )

    @property
    def is_ready(self) -> bool:
        return self._state == "ready"

    def send(self, command: EngineCommand) -> None:
        """Send a command, which replaces the one before. The engine may receive it several times."""
        if isinstance(command, Activate):
            self._start_begins()
        self._command = command
        self._transport.send(command)

    def _start_begins(self) -> None:
        config = self._config
        self._starts_by = self._clock.now() + config.start_timeout_s
        self._start = StartProgress(config.heartbeat_timeout_s, config.start_idle_timeout_s)

    def forget_gateway(self, gateway: int) -> None:
        self._gone.append(gateway)
        self._transport.send(Leave(gateways=[gateway]))

    async def wait(self) -> RunEnd:
        exited = self.engine.exited
        watching = asyncio.create_task(self._find_hang())
        broken: str | None = None
        try:
            events: set[asyncio.Future[Any]] = {exited, watching, self._unreadable}
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                if watching.done():
                    broken = watching.result()
                else:
                    broken = f"the engine sent a message that cannot be read: {self._unreadable.result()}"
                self.engine.kill()
                await asyncio.wait({exited}, timeout=_KILL_S)
            if not exited.done():
                return RunEnd(broken, gone=False)
            self._received = True
            while self._received:
                self._received = False
                await asyncio.sleep(_LAST_MESSAGES_S)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._transport.close()
        return RunEnd(broken or self._failed or exited.result(), gone=True)

    def _handle(self, message: FromEngine) -> None:
        self._received = True
        match message:
            case Heartbeat():
                self._busy_s, self._unheard_s = message.busy_s, message.unheard_s
                self._start.heard(message.work)
                by_itself = message.draining and not isinstance(self._command, Drain | Stop)
                if by_itself or (message.step and not self._has_answered):
                    self._has_answered = self._has_answered or message.step > 0
                    self._on_message(message)
            case Warm() if self._state != "warm":
                self._state, self._starts_by = "warm", math.inf
                self._on_message(message)
            case Asleep() if self._state != "asleep":
                self._state, self._starts_by = "asleep", math.inf
                self._on_message(message)
            case Ready() if self._state != "ready":
                self._state = "ready"
                self._on_message(message)
            case Progress():
                self._start.reported()
                self._on_message(message)
            case Failed():
                self._failed = message.message

    async def _find_hang(self) -> str:
        """Wait until the process has to be killed, for the returned reason."""
        watch = HeartbeatWatch(self._config)
        while True:
            if not self.engine.endpoint.directory:
                self._repeat()
            await asyncio.sleep(watch.turn_s)
            if self._loads and (hangs := await self._check_start(watch.turn_s)) is not None:
                return hangs
            heard = self._received or not self._must_be_heard
            if (hangs := watch.passed(heard=heard, busy_s=self._busy_s, unheard_s=self._unheard_s)) is not None:
                return hangs
            self._received = False

    @property
    def _must_be_heard(self) -> bool:
        """False while it loads a model, which may delay its heartbeat."""
        return self._adopted or not self._loads

    @property
    def _loads(self) -> bool:
        return not self._state or (self._state != "ready" and isinstance(self._command, Activate))

    async def _check_start(self, passed_s: float) -> str | None:
        """The reason to give up a start; None: it goes on."""
        if self._clock.now() > self._starts_by:
            return f"the engine was not ready after {self._config.start_timeout_s:g} s"
        is_here = bool(self.engine.endpoint.directory)
        if is_here:
            self._start.seen(await asyncio.to_thread(session_work, self.engine.pid))
        return self._start.passed(passed_s, is_seen=is_here)

    def _repeat(self) -> None:
        messages: list[ToEngine] = [Supervise(address=self._transport.address, knows=self._state)]
        if self._gone:
            messages.append(Leave(gateways=self._gone))
        if self._command is not None:
            messages.append(self._command)
        for message in messages:
            self._transport.send(message)


class StartProgress:
    """Progress of one start. Time passes in `passed`, which counts turns of a loop that reads messages. Heartbeats
    alone are no progress: they come from a thread of their own. A report of a further stage, and work done
    (`SessionWork.amount`), are. After `still_s` a process of this machine that neither speaks nor computes is stopped
    for good; after `idle_s` without progress the start hangs."""

    def __init__(self, still_s: float, idle_s: float) -> None:
        self._still_limit_s = still_s
        self._idle_limit_s = idle_s
        self._still_s = self._idle_s = 0.0
        self._work = 0.0
        self._seen: SessionWork | None = None

    def heard(self, work: float) -> None:
        """A heartbeat came, with the work that the engine has done."""
        self._still_s = 0.0
        self._note(work)

    def reported(self) -> None:
        self._still_s = self._idle_s = 0.0

    def seen(self, done: SessionWork) -> None:
        if done.waits_for_disk or done != self._seen:
            self._still_s = 0.0
        self._seen = done
        self._note(done.amount)

    def passed(self, seconds: float, *, is_seen: bool) -> str | None:
        """Time has passed. `is_seen`: the process runs here, where `seen` tells of it. Returns why the start is given
        up; None: it goes on."""
        self._idle_s += seconds
        self._still_s += seconds
        if is_seen and self._still_s > self._still_limit_s:
            return f"the engine stood still for {self._still_limit_s:g} s while it started"
        if self._idle_s > self._idle_limit_s:
            return f"the engine made no progress for {self._idle_limit_s:g} s while it started"
        return None

    def _note(self, work: float) -> None:
        if work >= self._work + 1 or work < self._work - 1:
            self._work, self._idle_s = work, 0.0
