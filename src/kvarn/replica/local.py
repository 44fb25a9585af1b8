"""A replica in a process of this machine, supervised by this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from kvarn.config.schema import ReplicaConfig
from kvarn.replica.api import ReplicaLostError, ReplicaState
from kvarn.replica.attached import ReplicaStatus
from kvarn.replica.client import EngineClient
from kvarn.replica.launch import EngineProcess
from kvarn.replica.spawn import spawn_engine
from kvarn.replica.spec import ReplicaSpec
from kvarn.replica.watch import Watch
from kvarn.wire.messages import Drain, EngineStats, Leave, ModelCard, Stop, ToEngine

_MAX_BACKOFF_S = 30.0
_STOP_GRACE_S = 2.0
"""Seconds an engine gets to end by itself before it is killed."""

log = logging.getLogger(__name__)


class LocalReplica(EngineClient):
    """Starts an engine process, speaks to it, and starts it again when it dies. Implements `Replica`.

    `spawn` needs no event loop, so a command can start the engine before its own slow imports; `start` then takes
    over in the loop, and spawns if that has not been done.
    """

    def __init__(self, spec: ReplicaSpec, config: ReplicaConfig, process: EngineProcess | None = None) -> None:
        """Give `process` to use one that was spawned before its model was known."""
        super().__init__(spec.model_config.name)
        self._spec = spec
        self._config = config
        self._process = process
        self._handed_over = False
        self._watch = Watch()
        self._failure: str | None = None
        self._leaving = False
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def progress(self) -> tuple[str, float]:
        """Stage and fraction of the start; while down, why."""
        if self._state is ReplicaState.DOWN:
            return (self._failure or "stopped", 0.0)
        return self._watch.progress

    @property
    def failure(self) -> str | None:
        """Why the latest engine process ended; None while one serves."""
        return self._failure

    @property
    def card(self) -> ModelCard | None:
        """What is served; None until first ready."""
        return self._watch.card

    @property
    def stats(self) -> EngineStats:
        """The latest gauges and totals the engine sent."""
        return self._watch.stats

    @property
    def pid(self) -> int | None:
        """The engine process's id while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def status(self) -> ReplicaStatus:
        """What other processes that use this engine have to know."""
        stage, fraction = self.progress
        directory = "" if self._process is None else str(self._process.directory)
        return ReplicaStatus(
            model=self._name, state=self._state, stage=stage, fraction=fraction, card=self.card, directory=directory
        )

    async def changed(self) -> None:
        """Wait for the next change of `status`."""
        await self._watch.changed()

    def forget_gateway(self, gateway: int) -> None:
        """A gateway process that used this engine is gone: what it had in flight is aborted."""
        if self._state in (ReplicaState.READY, ReplicaState.DRAINING):
            self._send(Leave(gateway=gateway))

    def spawn(self) -> None:
        """Start the engine process, or tell the one given at construction what to become. Idempotent."""
        if self._process is None:
            self._process = EngineProcess(spawn_engine(self._spec.factory))
            self._handed_over = False
        if not self._handed_over:
            self._process.hand_over(self._spec)
            self._handed_over = True

    def start(self) -> None:
        """Supervise the engine in the running event loop, until `drain` or `stop`. Idempotent."""
        if self._supervisor is None:
            self.spawn()
            self._supervisor = asyncio.create_task(self._supervise(), name=f"supervise {self._name}")

    async def wait_until_ready(self) -> ModelCard:
        """Wait until requests are taken.

        Raises:
            ReplicaLostError: The engine failed to start; the message says why. The supervisor goes on trying.
        """
        while self._state is not ReplicaState.READY:
            if self._state is ReplicaState.DOWN:
                raise ReplicaLostError(self._failure or f"{self._name} is stopped")
            await self._watch.changed()
        card = self._watch.card
        assert card is not None
        return card

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests, let running ones finish for `timeout_s` seconds, then end the engine.

        Returns:
            Whether all requests finished in time; those that did not fail with `ReplicaLostError`.
        """
        finished = True
        if self._supervisor is not None and self._state is ReplicaState.READY:
            self._leaving = True
            self._set_state(ReplicaState.DRAINING)
            self._send(Drain())
            done, _ = await asyncio.wait({self._supervisor}, timeout=timeout_s)
            finished = bool(done) and self._failure is None
        await self.stop()
        return finished

    async def stop(self) -> None:
        """End the engine now; requests in flight fail with `ReplicaLostError`. Idempotent."""
        self._leaving = True
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None and not supervisor.done():
            if self._state in (ReplicaState.READY, ReplicaState.DRAINING):
                self._send(Stop())
                await asyncio.wait({supervisor}, timeout=_STOP_GRACE_S)
            supervisor.cancel()
        if supervisor is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await supervisor
        self._end(self._failure)

    def abandon(self) -> None:
        """Kill the engine where no event loop supervises it: before `start` or after its end. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _send(self, message: ToEngine) -> None:
        assert self._process is not None
        self._process.send(message)

    def _set_state(self, state: ReplicaState) -> None:
        self._state = state
        self._watch.notify()

    async def _supervise(self) -> None:
        """Run one engine process after another until told to leave."""
        backoff_s = self._config.restart_backoff_s
        last_failure: str | None = None
        while not self._leaving:
            began = asyncio.get_running_loop().time()
            failure = await self._run_once()
            self._end(failure)
            if self._leaving:
                return
            if asyncio.get_running_loop().time() - began > _MAX_BACKOFF_S:
                backoff_s = self._config.restart_backoff_s
            # Whoever waits for the first start says why it failed; a start that fails again for the same reason is no
            # news.
            is_news = self._watch.was_ready or (last_failure is not None and failure != last_failure)
            log.log(
                logging.ERROR if is_news else logging.DEBUG,
                "the engine is down and will be restarted",
                extra={"model": self._name, "reason": failure, "restart_in_s": backoff_s},
            )
            last_failure = failure
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def _run_once(self) -> str | None:
        """One engine process from its start to its end; returns why it ended, None if it was asked to."""
        self._watch.begin()
        try:
            self.spawn()
        except OSError as error:
            return f"the engine process cannot be started: {error}"
        assert self._process is not None
        self._set_state(ReplicaState.STARTING)
        try:
            failure = await self._watch.run(self._process, self._config, self._inflight, self._became_ready)
        except Exception as error:
            log.exception("the engine's supervision failed", extra={"model": self._name})
            failure = f"the engine's supervision failed: {error}"
        return None if self._leaving and failure is None else failure or "the engine process ended unasked"

    def _became_ready(self, card: ModelCard) -> None:
        self._failure = None
        if self._leaving:
            return
        self._set_state(ReplicaState.READY)
        log.info("the engine is ready", extra={"model": self._name, "pid": self.pid, **_rounded(card.start_s)})

    def _end(self, failure: str | None) -> None:
        """Close what the engine process left behind and fail what was in flight on it."""
        process, self._process = self._process, None
        self._handed_over = False
        self._failure = failure
        self._set_state(ReplicaState.DOWN)
        self._inflight.fail_all(failure or "the engine was stopped")
        if process is not None:
            process.close()


def _rounded(start_s: dict[str, float]) -> dict[str, float]:
    return {f"{phase.replace(' ', '_')}_s": round(seconds, 3) for phase, seconds in start_s.items()}
