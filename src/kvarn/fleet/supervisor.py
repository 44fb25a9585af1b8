"""Keeps one engine process running on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.engine_run import EngineRun
from kvarn.fleet.process import EngineProcess
from kvarn.fleet.restart import keep_running
from kvarn.replica.client.protocol import ReplicaLostError, ReplicaState, ReplicaStatus
from kvarn.replica.spec import ReplicaSpec, replica_names
from kvarn.wire.messages import Leave, ModelCard, Progress, Ready, Stop

_STOP_GRACE_S = 2.0
"""Seconds an engine gets to end by itself before it is killed."""

log = logging.getLogger(__name__)


class EngineSupervisor:
    """Starts an engine process, and starts it again when it dies. Clients learn of its state by `subscribe`.

    `launch` needs no event loop, so a command can start the engine before its own slow imports; `start` then takes
    over in the loop.
    """

    def __init__(self, spec: ReplicaSpec, config: ReplicaConfig) -> None:
        model = spec.model_config.name
        self.status = ReplicaStatus(model=model, replica=spec.replica or replica_names(model, 1)[0])
        self.failure: str | None = None
        """Why the latest engine process ended; None while one serves."""
        self._spec = spec
        self._config = config
        self._process: EngineProcess | None = None
        self._run: EngineRun | None = None
        self._listeners: list[Callable[[ReplicaStatus], None]] = []
        self._changed = asyncio.Event()
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._was_ready = False
        self._reported: str | None = None

    @property
    def pid(self) -> int | None:
        """The engine process's id while there is one."""
        return self._process.popen.pid if self._process is not None else None

    def subscribe(self, listener: Callable[[ReplicaStatus], None]) -> None:
        """Call it with the status, now and at each change."""
        self._listeners.append(listener)
        listener(self.status)

    def launch(self, process: EngineProcess | None = None) -> EngineProcess:
        """Start the engine; `process` is one that was spawned before its model was known.

        Raises:
            OSError: No process can be started.
        """
        process = self._process = process or EngineProcess.spawn(self._spec.factory.partition(":")[0])
        spec = msgspec.structs.replace(self._spec, sockets=str(process.sockets), spawned_at=process.spawned_at)
        process.start(msgspec.json.encode(spec))
        return process

    def start(self) -> None:
        """Supervise the engine in the running event loop, until `stop`; launch it if need be. Idempotent."""
        if self._task is None:
            keeping = keep_running(self._run_once, self._leaving, self._config.restart_backoff_s, self._report)
            self._task = asyncio.create_task(keeping, name=f"supervise {self.status.replica}")

    async def wait_until_ready(self) -> ModelCard:
        """Wait until requests are taken.

        Raises:
            ReplicaLostError: The engine failed to start; the message says why. The supervisor goes on trying.
        """
        while self.status.state is not ReplicaState.READY:
            if self.status.state is ReplicaState.DOWN:
                raise ReplicaLostError(self.status.stage)
            await self._changed.wait()
        assert self.status.card is not None
        return self.status.card

    async def stop(self) -> None:
        """End the engine now; requests in flight fail with `ReplicaLostError`. Idempotent."""
        self._leaving.set()
        task, self._task = self._task, None
        if task is not None:
            if self._run is not None and self.status.state in (ReplicaState.READY, ReplicaState.DRAINING):
                self._run.send(Stop())
                await asyncio.wait({task}, timeout=_STOP_GRACE_S)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._ended(self.failure)

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let what runs end, and end the engine after `timeout_s` seconds at the latest: what is left
        then goes on with another replica. Idempotent."""
        self._leaving.set()
        if self._task is not None and self._process is not None and self.status.state is ReplicaState.READY:
            self._update(state=ReplicaState.DRAINING, stage="drain")
            self._process.popen.terminate()
            await asyncio.wait({self._task}, timeout=timeout_s)
        await self.stop()

    async def restart(self, timeout_s: float) -> None:
        """Drain the engine, and start it again."""
        await self.drain(timeout_s)
        self._leaving.clear()
        self.start()

    def retire(self) -> None:
        """Tell all clients that this replica, which was stopped, will not come back."""
        self._update(state=ReplicaState.GONE)

    def kill(self) -> None:
        """End the engine where no event loop supervises it: before `start` or after its end. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def forget_gateway(self, gateway: int) -> None:
        """A gateway process that used this engine is gone: its requests are aborted."""
        if self._run is not None and self._run.was_ready:
            self._run.send(Leave(gateway=gateway))

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

    async def _run_once(self) -> str | None:
        """One engine process from its start to its end; returns why it ended, None if it was asked to."""
        self._was_ready = False
        try:
            failure = await self._supervise(self._process or self.launch())
        except OSError as error:
            failure = f"the engine process cannot be started: {error}"
        except Exception as error:
            log.exception("the engine's supervision failed", extra=self._names)
            failure = f"the engine's supervision failed: {error}"
        if failure is None and not self._leaving.is_set():
            failure = "the engine process ended by itself"
        self._ended(failure)
        return failure

    async def _supervise(self, process: EngineProcess) -> str | None:
        before = self.status
        self._set_status(
            ReplicaStatus(model=before.model, replica=before.replica, card=before.card, sockets=str(process.sockets))
        )
        run = self._run = EngineRun(process, self._config, self._on_message)
        try:
            return await run.wait()
        finally:
            self._run, self._was_ready = None, run.was_ready

    def _on_message(self, message: Progress | Ready) -> None:
        if isinstance(message, Progress):
            self._update(stage=message.stage, fraction=message.fraction)
            return
        self.failure, card = None, message.card
        if not self._leaving.is_set():
            self._update(state=ReplicaState.READY, stage="ready", fraction=1.0, card=card)
            start_s = {f"{phase.replace(' ', '_')}_s": round(seconds, 3) for phase, seconds in card.start_s.items()}
            log.info("the engine is ready", extra=self._names | {"pid": self.pid, **start_s})

    def _ended(self, failure: str | None) -> None:
        """Remove what the engine process left behind; clients fail what was in flight on it."""
        self.failure = failure
        self._update(state=ReplicaState.DOWN, stage=failure or "the engine was stopped", fraction=0.0)
        self.kill()

    def _report(self, failure: str | None, backoff_s: float) -> None:
        # Whoever waits for the first start says why it failed; a start that fails again for the same reason is no news.
        is_news = self._was_ready or self._reported not in (None, failure)
        log.log(
            logging.ERROR if is_news else logging.DEBUG,
            "the engine is down and will be restarted",
            extra=self._names | {"reason": failure, "restart_in_s": backoff_s},
        )
        self._reported = failure
