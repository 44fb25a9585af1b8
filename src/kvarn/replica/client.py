"""A client of an engine process: the requests of this process that are in flight on it."""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator

from kvarn.replica.api import ReplicaLostError, ReplicaState, RequestRefusedError
from kvarn.replica.inflight import InFlight
from kvarn.replica.stream import Hold
from kvarn.wire.messages import Abort, Embed, RefusalReason, Submit, ToEngine, TokenDelta


class EngineClient(abc.ABC):
    """Sends requests to one engine while that is ready. Who supervises the engine sets the state."""

    def __init__(self, name: str, gateway: int = 0) -> None:
        """`name`: of the model. `gateway`: number of this process, whom the engine answers."""
        self._name = name
        self._gateway = gateway
        self._inflight = InFlight(self._abort)
        self._state = ReplicaState.STARTING

    @property
    def state(self) -> ReplicaState:
        """The present state; `READY` takes requests."""
        return self._state

    @property
    @abc.abstractmethod
    def progress(self) -> tuple[str, float]:
        """Stage and fraction of the start; while down, why."""

    async def generate(self, request: Submit, hold: Hold | None = None) -> AsyncGenerator[TokenDelta, None]:
        """Run a request; see `Replica.generate`. Nothing is sent before the first delta is asked for."""
        self._check_open()
        stream = self._inflight.open_stream(request.request_id, request.sampling.n, hold)
        try:
            self._send(request)
            while deltas := await stream.take():
                for delta in deltas:
                    yield delta
        finally:
            self._forget(request.request_id, abort=not stream.finished)

    async def embed(self, request_id: str, inputs: list[list[int]]) -> list[bytes]:
        """Embed token-id inputs; see `Replica.embed`. Cancelling it aborts the request in the engine."""
        self._check_open()
        answer = self._inflight.open_answer(request_id)
        try:
            self._send(Embed(request_id=request_id, inputs=inputs, gateway=self._gateway))
            return await answer
        finally:
            self._forget(request_id, abort=answer.cancelled() or not answer.done())

    @abc.abstractmethod
    def _send(self, message: ToEngine) -> None:
        """Queue a message for the engine that runs now; never waits."""

    def _check_open(self) -> None:
        if self._state is ReplicaState.DRAINING:
            raise RequestRefusedError(RefusalReason.DRAINING, f"{self._name} is shutting down")
        if self._state is not ReplicaState.READY:
            stage, fraction = self.progress
            raise ReplicaLostError(f"{self._name} is not ready: {self._state} ({stage}, {fraction:.0%})")

    def _forget(self, request_id: str, *, abort: bool) -> None:
        self._inflight.close(request_id)
        if abort:
            self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        if self._state in (ReplicaState.READY, ReplicaState.DRAINING):
            self._send(Abort(request_id=request_id, gateway=self._gateway))
