"""A replica whose engine another process of this machine supervises."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec

from kvarn.replica.api import ReplicaState
from kvarn.replica.client import EngineClient
from kvarn.replica.sockets import EngineSockets
from kvarn.replica.spawn import inbox_address, outbox_address
from kvarn.wire.messages import (
    Embedded,
    EngineStats,
    FromEngine,
    Join,
    ModelCard,
    Refused,
    StepOutput,
    Submit,
    ToEngine,
)

log = logging.getLogger(__name__)


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor of an engine tells the other processes that use it, at each change."""

    model: str
    state: ReplicaState
    stage: str
    fraction: float
    card: ModelCard | None = None
    directory: str = ""
    """Of the engine's sockets: each engine process has its own."""


class AttachedReplica(EngineClient):
    """Speaks to an engine that its supervisor says is there. Implements `Replica`.

    Args:
        name: Of the model.
        gateway: Number of this process, at least 1.
    """

    def __init__(self, name: str, gateway: int) -> None:
        super().__init__(name, gateway)
        self._status = ReplicaStatus(model=name, state=ReplicaState.STARTING, stage="start", fraction=0.0)
        self._stats = EngineStats()
        self._directory = ""
        """Of the engine to which this process is connected; empty: to none."""
        self._sockets: EngineSockets | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def progress(self) -> tuple[str, float]:
        """Stage and fraction of the start; while down, why."""
        return self._status.stage, self._status.fraction

    @property
    def card(self) -> ModelCard | None:
        """What is served; None until first ready."""
        return self._status.card

    @property
    def stats(self) -> EngineStats:
        """The latest gauges and totals the engine sent."""
        return self._stats

    def update(self, status: ReplicaStatus) -> None:
        """Take over what the supervisor says."""
        serves = status.state in (ReplicaState.READY, ReplicaState.DRAINING)
        if self._directory and (not serves or status.directory != self._directory):
            self._detach("the engine is down" if serves else status.stage)
        if serves and not self._directory:
            self._attach(status.directory)
        self._status, self._state = status, status.state

    def close(self) -> None:
        """Leave the engine; requests in flight fail."""
        self._detach("the gateway process was stopped")

    def _send(self, message: ToEngine) -> None:
        if isinstance(message, Submit):
            message = msgspec.structs.replace(message, gateway=self._gateway)
        if self._sockets is not None:
            self._sockets.send(message)

    def _attach(self, directory: str) -> None:
        address = outbox_address(Path(directory), self._gateway)
        sockets = self._sockets = EngineSockets(inbox_address(Path(directory)), address)
        sockets.send(Join(gateway=self._gateway, address=address))
        self._directory = directory
        self._listening = asyncio.create_task(self._listen(sockets), name=f"listen to {self._name}")
        # Not before it has ended: till then it has their descriptor in the event loop.
        self._listening.add_done_callback(lambda _: sockets.close())

    def _detach(self, reason: str) -> None:
        sockets, self._sockets = self._sockets, None
        self._directory = ""
        self._stats = EngineStats()
        if sockets is not None and self._listening is not None:
            for message in sockets.readable():
                self._handle(message)
            self._listening.cancel()
        self._inflight.fail_all(reason)

    async def _listen(self, sockets: EngineSockets) -> None:
        try:
            await sockets.listen(self._handle)
        except Exception:
            log.exception("messages of the engine cannot be read", extra={"model": self._name})
            self._detach("messages of the engine cannot be read")
            raise

    def _handle(self, message: FromEngine) -> None:
        if isinstance(message, StepOutput):
            self._stats = message.stats or self._stats
        if isinstance(message, StepOutput | Embedded | Refused):
            self._inflight.handle(message)
