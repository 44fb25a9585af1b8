"""One replica as others see it, whatever process or machine it runs in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from kvarn.replica.client.block_events import BlockWatcher
from kvarn.replica.endpoint import Endpoint
from kvarn.wire.messages import AdapterInfo, EngineStats, ModelCard, RefusalReason, Submit, TokenDelta
from kvarn.wire.questions import AnswerT, EngineQuestion
from kvarn.wire.sessions import SessionNews

ReportPending = Callable[[int], None]
"""Called with the bytes that wait for a request's consumer, as they change; raises where there is no memory."""


class ReplicaState(StrEnum):
    """State of a replica. Clients see `STARTING`, `READY`, `DRAINING`, `DOWN` and `GONE`; the others are steps that its
    supervisor tells apart."""

    PENDING = "pending"
    STARTING = "starting"
    WARM = "warm"
    """The weights are mapped, and nothing of the model is made: it waits to be activated."""
    READY = "ready"
    FALLING_ASLEEP = "falling asleep"
    """No new requests are taken; when the running ones have ended, the weights leave the GPU."""
    ASLEEP = "asleep"
    """The weights are in main memory, and nothing is left on the GPU: it waits to be activated."""
    DRAINING = "draining"
    """No new requests are taken; the process ends when the running ones have ended or moved."""
    STOPPING = "stopping"
    """The process has been told to end, and is killed if it does not."""
    DOWN = "down"
    """The process is gone. Another is asked for, after a pause where several ended before they had answered."""
    GONE = "gone"


class RequestRefusedError(Exception):
    def __init__(self, reason: RefusalReason, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class AdapterChangeError(Exception):
    def __init__(self, code: str, message: str) -> None:
        """`code`: see `AdapterChanged`."""
        super().__init__(message)
        self.code = code


class ReplicaLostError(Exception):
    """The engine process died or fell silent while the request was in flight, or is not ready."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a replica, sent by its supervisor to its clients at each change."""

    model: str
    replica: str
    """Its name, the same for each engine process that runs it in turn."""
    version: int = 0  # version of the model; 0: the configuration's
    state: ReplicaState = ReplicaState.STARTING
    stage: str = "start the engine process"
    """Stage of the start; while down, why."""
    fraction: float = 0.0  # part of the stage that is done
    card: ModelCard | None = None
    """Card of the model; None until first ready."""
    endpoint: Endpoint | None = None
    """Endpoint of the engine process: each has its own. None before the first."""


class ReplicaClient(Protocol):
    """A replica that runs or starts. Used from one event loop; its attributes are read only, but for one."""

    state: ReplicaState  # `READY` takes requests
    progress: tuple[str, float]
    """Stage and fraction of the start; while down, why."""
    card: ModelCard | None
    """Card of the model; None until first ready. Another object after each start of the engine."""
    starts: int  # number of engine processes that have been ready
    stats: EngineStats
    on_changed: Callable[[], None]
    """Called when `state` or `adapters` have changed; belongs to the component that keeps the replica."""

    def generate(
        self, request: Submit, report_pending: ReportPending | None = None
    ) -> AsyncGenerator[TokenDelta, None]:
        """Run a request; yields deltas of all its choices until each has a `finish_reason`.

        Nothing is sent before the first delta is awaited. Deltas that the consumer has not yet taken are merged per
        choice, so a slow consumer holds memory bounded by its own `max_tokens`, and come in bounded parts. Where
        `report_pending` raises, what waits is dropped, the request is aborted, and the consumer gets the error. Closing
        the generator (or cancelling its consumer) aborts the request.

        Raises:
            RequestRefusedError: The engine refused or gave up the request.
            ReplicaLostError: The engine is not ready, died or fell silent.
        """

    adapters: dict[str, AdapterInfo]

    async def load_adapter(self, request_id: str, adapter: AdapterInfo, *, in_place: bool = False) -> None:
        """Have the engine load an adapter, beside what runs. When it returns, `adapters` has it. Raises
        `AdapterChangeError`, `RequestRefusedError` where the engine has no adapters, or `ReplicaLostError`."""

    async def unload_adapter(self, request_id: str, name: str) -> None:
        """Have the engine take no more requests for an adapter. Raises as `load_adapter`."""

    async def embed(self, request_id: str, inputs: list[list[int]]) -> list[bytes]:
        """Embed token-id inputs; see `Embedded`. Raises as `generate` does; cancelling it aborts the request."""

    def forget_tenant(self, tenant: str) -> bool:
        """Have the engine delete a deleted tenant's cached blocks, on every tier; False where it is not ready."""

    def tell_session(self, news: SessionNews) -> bool:
        """Tell the engine of a session's event; False where it is not ready."""

    def watch_blocks(self, watcher: BlockWatcher | None) -> None:
        """Let this watcher hear which blocks the replica caches, after each of its starts; None: no watcher."""

    async def ask(self, question: EngineQuestion[AnswerT]) -> AnswerT | None:
        """Ask what the engine does. None: it is not known, the replica is not ready, is lost meanwhile, does not
        answer, or has no such records (an encoder, another server)."""
