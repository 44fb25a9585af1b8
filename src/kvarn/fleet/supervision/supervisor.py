"""The supervisor of one replica: carries out the commands of its lifecycle with engine processes of a launcher."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.launch.launcher import LaunchedEngine, Launcher
from kvarn.fleet.launch.local import LocalLauncher, launch_local
from kvarn.fleet.placement.places import LaunchError
from kvarn.fleet.supervision.engine_run import EngineReport, EngineRun
from kvarn.fleet.supervision.lifecycle import (
    LEAVING,
    Command,
    CommandKind,
    LifecycleTimeouts,
    ReplicaLifecycle,
)
from kvarn.replica.client.protocol import ReplicaLostError, ReplicaState, ReplicaStatus
from kvarn.replica.spec import ReplicaSpec, replica_names
from kvarn.wire.messages import ModelCard, Progress, Ready, Stop
from kvarn.wire.supervision import Activate, Asleep, Drain, Heartbeat, Sleep, Warm

log = logging.getLogger(__name__)


class EngineSupervisor:
    """Starts an engine process, and starts another when it dies. Clients learn of its state by `subscribe`. `launch`
    needs no event loop, so a command can start an engine of this machine before its own slow imports; `start` then
    takes over in the loop."""

    def __init__(
        self,
        spec: ReplicaSpec,
        config: ReplicaConfig,
        launcher: Launcher | None = None,
        *,
        last_run: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        model = spec.model_config.name
        name = spec.replica or replica_names(model, 1)[0]
        self.status = ReplicaStatus(model=model, replica=name, version=spec.version)
        self.failure: str | None = None
        """The reason why the latest engine process ended; None while one serves."""
        self.spec = spec
        self.lifecycle = self._new_lifecycle(config, last_run, in_pool=spec.warm)
        self._config = config
        self._clock = clock
        self._now = clock.now
        self._launcher = launcher or LocalLauncher()
        self._launched: LaunchedEngine | None = None
        """Started before there was a loop."""
        self._engines: dict[int, LaunchedEngine] = {}
        self._runs: dict[int, EngineRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[ReplicaStatus], None]] = []
        self._changed = asyncio.Event()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._was_ready = False
        self._reported: str | None = None

    @property
    def pid(self) -> int | None:
        engine = self._engines.get(self.lifecycle.run) or self._launched
        return engine.pid if engine is not None else None

    def subscribe(self, listener: Callable[[ReplicaStatus], None]) -> None:
        """Call it with the status, now and at each change."""
        self._listeners.append(listener)
        listener(self.status)

    def launch(self, process: EngineProcess | None = None) -> EngineProcess:
        """Start the engine on this machine; `process` is one that was spawned before its model was known."""
        engine = launch_local(self.spec, process)
        self._launched = engine
        return engine.process

    def start(self) -> None:
        """Supervise the engine in the running event loop, until `stop`; launch it if need be. Idempotent."""
        if self._task is None:
            if self.lifecycle.state is ReplicaState.GONE:
                self.lifecycle = self._new_lifecycle(self._config, self.lifecycle.run, in_pool=self.lifecycle.in_pool)
            self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.status.replica}")

    async def wait_until_ready(self) -> ModelCard:
        """Wait until requests are taken. Raises `ReplicaLostError` where the engine failed to start; the supervisor
        goes on trying."""
        while self.status.state is not ReplicaState.READY:
            if self.status.state is ReplicaState.DOWN:
                raise ReplicaLostError(self.status.stage)
            await self._changed.wait()
        assert self.status.card is not None
        return self.status.card

    def activate(self) -> None:
        """Have a process that waits, warm or asleep, take requests. Idempotent."""
        if self.status.state is ReplicaState.GONE:
            self._update(state=ReplicaState.STARTING)
        self._do(self.lifecycle.activate(self._now()))

    async def sleep(self, timeout_s: float) -> None:
        """Take nothing new, let what runs end, and wait with the weights in main memory until `activate`. Clients hear
        that the replica is gone, and nothing after that: they subscribe again. One that is told to end meanwhile drains
        as any other."""
        self._do(self.lifecycle.sleep(self._now(), timeout_s))
        while self.lifecycle.state is ReplicaState.FALLING_ASLEEP:
            await self._changed.wait()
        if self.lifecycle.state not in LEAVING:
            self.retire()
            self._listeners.clear()

    async def stop(self) -> None:
        """End the engine now; requests in flight fail with `ReplicaLostError`. Idempotent."""
        self._do(self.lifecycle.stop(self._now()))
        await self._until_gone()

    async def leave(self) -> None:
        """Look after the engine no longer: one on another machine goes on, to be taken over."""
        task, self._task = self._task, None
        tasks = [*self._tasks, *([] if task is None else [task])]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._engines.clear()

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let what runs end, and end the engine after `timeout_s` seconds at the latest: what is left
        then goes on with another replica. Idempotent."""
        self._do(self.lifecycle.drain(self._now(), timeout_s))
        await self._until_gone()

    async def restart(self, timeout_s: float) -> None:
        await self.drain(timeout_s)
        self._update(state=ReplicaState.STARTING, stage="start the engine process")
        self.start()

    def retire(self) -> None:
        """Tell all clients that this replica, which was stopped, will not come back."""
        self._update(state=ReplicaState.GONE)

    def kill(self) -> None:
        """End the engine where no event loop supervises it: before `start` or after its end. Idempotent."""
        engines, self._engines = [*self._engines.values()], {}
        if self._launched is not None:
            engines.append(self._launched)
            self._launched = None
        for engine in engines:
            engine.close()

    def forget_gateway(self, gateway: int) -> None:
        """A gateway process that used this engine is gone: its requests are aborted."""
        run = self._runs.get(self.lifecycle.run)
        if run is not None and run.is_ready:
            run.forget_gateway(gateway)

    # The loop ----------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        adopted = {} if self._launched is not None else await self._launcher.adopt(self.status.replica)
        for run, engine in adopted.items():
            self._engines[run] = engine
            self._do(self.lifecycle.adopt(run, self._now()))
        for run, engine in adopted.items():
            self._spawn(self._follow(run, engine, adopted=True))
        self._do(self.lifecycle.start(self._now()))
        while self.lifecycle.state is not ReplicaState.GONE:
            self._woken.clear()
            wake_at = self.lifecycle.wake_at
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wake_at is None else max(0.0, wake_at - self._now())):
                    await self._woken.wait()
            self._do(self.lifecycle.tick(self._now()))

    async def _until_gone(self) -> None:
        """Wait for the end of all runs; leaves no process on this machine."""
        task, self._task = self._task, None
        if task is not None:
            try:
                await task
            finally:
                task.cancel()
                for each in self._tasks:
                    each.cancel()
                await asyncio.gather(task, *self._tasks, return_exceptions=True)
        self._down(self.failure)
        self.kill()

    def _do(self, commands: list[Command]) -> None:
        """Carry out commands of the lifecycle, and check it again when its next event is due."""
        for command in commands:
            run, engine = self._runs.get(command.run), self._engines.get(command.run)
            match command.kind:
                case CommandKind.LAUNCH:
                    self._spawn(self._launch(command.run))
                case CommandKind.ACTIVATE if run is not None:
                    run.send(Activate())
                case CommandKind.SLEEP if run is not None:
                    run.send(Sleep())
                    self._update(state=ReplicaState.DRAINING, stage="fall asleep")
                case CommandKind.DRAIN if run is not None:
                    run.send(Drain())
                    self._update(state=ReplicaState.DRAINING, stage="drain")
                case CommandKind.STOP if run is not None:
                    run.send(Stop())
                case CommandKind.KILL if engine is not None:
                    engine.kill()
                case CommandKind.KILL:
                    self._launcher.give_up(self.status.replica, command.run)
        self._woken.set()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _launch(self, run: int) -> None:
        try:
            engine, self._launched = self._launched, None
            spec = msgspec.structs.replace(self.spec, warm=self.lifecycle.in_pool)
            engine = self._engines[run] = engine or await self._launcher.launch(
                spec, run, lambda stage: self._launch_waits(run, stage)
            )
        except (OSError, LaunchError) as error:
            self._ended(run, f"the engine process cannot be started: {error}")
            return
        self._do(self.lifecycle.launched(run, self._now()))
        await self._follow(run, engine)

    def _launch_waits(self, run: int, stage: str) -> None:
        if run == self.lifecycle.run and self.lifecycle.state is ReplicaState.PENDING:
            log.info("the engine's launch waits", extra=self._names | {"reason": stage})
            self._update(state=ReplicaState.STARTING, stage=stage)

    async def _follow(self, run: int, engine: LaunchedEngine, *, adopted: bool = False) -> None:
        before = self.status
        if run == self.lifecycle.run:
            self._was_ready = False
            self._set_status(
                ReplicaStatus(
                    model=before.model,
                    replica=before.replica,
                    version=before.version,
                    card=before.card,
                    endpoint=engine.endpoint,
                )
            )
        engine.announced.add_done_callback(lambda announced: self._announced(run, announced))
        try:
            followed = self._runs[run] = EngineRun(
                engine, self._config, lambda message: self._on_message(run, message), self._clock, adopted=adopted
            )
            end = await followed.wait()
            failure, gone = end.reason, end.gone
        except Exception as error:
            log.exception("the engine's supervision failed", extra=self._names)
            failure, gone = f"the engine's supervision failed: {error}", False
            engine.kill()
        self._runs.pop(run, None)
        if not gone:
            reason = failure or "the engine was lost"
            self._do(self.lifecycle.lost(run, reason, self._now()))
            self._report_end(run, reason)
            await engine.exited
            failure = reason
        engine.close()
        self._engines.pop(run, None)
        self._ended(run, failure)

    def _ended(self, run: int, failure: str | None) -> None:
        leaving = self.lifecycle.state in (ReplicaState.STOPPING, ReplicaState.DRAINING)
        if failure is None and not leaving:
            failure = "the engine process ended by itself"
        already = run in self.lifecycle.given_up
        self._do(self.lifecycle.ended(run, failure or "", self._now()))
        if not already:
            self._report_end(run, failure)

    def _report_end(self, run: int, failure: str | None) -> None:
        """Report an end to clients, which fail requests in flight, and to the log."""
        if run != self.lifecycle.run:
            return
        self._down(failure)
        if self.lifecycle.state is not ReplicaState.DOWN or self.lifecycle.wake_at is None:
            return
        # The caller that waits for the first start reports why it failed; the same failure again is no news.
        is_news = self._was_ready or self._reported not in (None, failure)
        pause_s = round(max(0.0, self.lifecycle.wake_at - self._now()), 3)
        log.log(
            logging.ERROR if is_news else logging.DEBUG,
            "the engine is down and will be restarted",
            extra=self._names | {"reason": failure, "restart_in_s": pause_s},
        )
        self._reported = failure

    def _down(self, failure: str | None) -> None:
        self.failure = failure
        self._update(state=ReplicaState.DOWN, stage=failure or "the engine was stopped", fraction=0.0)

    def _on_message(self, run: int, message: EngineReport) -> None:
        if run != self.lifecycle.run:
            return
        match message:
            case Heartbeat():
                if message.step:
                    self.lifecycle.answered(run)
                if message.draining:
                    self._found_draining(run)
            case Warm():
                self._do(self.lifecycle.warmed(run, self._now()))
                self._waits("the engine is warm")
            case Asleep():
                self._do(self.lifecycle.fell_asleep(run, self._now()))
                self._waits("the engine is asleep")
            case Progress():
                self._update(stage=message.stage, fraction=message.fraction)
            case Ready():
                self._became_ready(run, message.card)

    def _found_draining(self, run: int) -> None:
        """An engine drains that this controller has not told to. One that was ready is replaced when it has ended: it
        was told by SIGTERM."""
        if self.lifecycle.state is ReplicaState.READY and self.status.state is ReplicaState.READY:
            log.warning("the engine was told to end, and drains", extra=self._names | {"pid": self.pid})
            self._update(state=ReplicaState.DRAINING, stage="drain")
        known = self.lifecycle.drains_by_itself
        self._do(self.lifecycle.found_draining(run))
        if self.lifecycle.drains_by_itself and not known:
            self._down("an earlier controller had told the engine to end")

    def _announced(self, run: int, announced: asyncio.Future[float]) -> None:
        if announced.cancelled():
            return
        notice_s = announced.result()
        log.warning("the engine's machine ends it", extra=self._names | {"run": run, "notice_s": notice_s})
        self._do(self.lifecycle.announced(run, notice_s, self._now()))
        if run == self.lifecycle.run and self.lifecycle.state is ReplicaState.DOWN:
            self._report_end(run, self.lifecycle.reason)

    def _waits(self, what: str) -> None:
        log.info(what, extra=self._names | {"pid": self.pid})
        self._update(stage="wait to be activated")

    def _became_ready(self, run: int, card: ModelCard) -> None:
        self._do(self.lifecycle.became_ready(run, self._now()))
        self.failure = None
        if self.lifecycle.state is ReplicaState.READY:
            self._was_ready = True
            self._update(state=ReplicaState.READY, stage="ready", fraction=1.0, card=card)
            start_s = {f"{phase.replace(' ', '_')}_s": round(seconds, 3) for phase, seconds in card.start_s.items()}
            log.info("the engine is ready", extra=self._names | {"pid": self.pid, **start_s})

    @property
    def _names(self) -> dict[str, str]:
        return {"model": self.status.model, "replica": self.status.replica}

    def _update(self, **changes: Any) -> None:
        self._set_status(msgspec.structs.replace(self.status, **changes))

    def _set_status(self, status: ReplicaStatus) -> None:
        self.status = status
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self._listeners:
            listener(self.status)

    @staticmethod
    def _new_lifecycle(config: ReplicaConfig, last_run: int, *, in_pool: bool) -> ReplicaLifecycle:
        return ReplicaLifecycle(LifecycleTimeouts.of(config), in_pool=in_pool, last_run=last_run)
