"""What the gateway may ask of a replica, whatever process or machine it runs in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import Protocol

from kvarn.replica.stream import Hold
from kvarn.wire.messages import EngineStats, ModelCard, RefusalReason, Submit, TokenDelta


class ReplicaState(StrEnum):
    """Where a replica is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"


class RequestRefusedError(Exception):
    """The engine did not take, or gave up, a request."""

    def __init__(self, reason: RefusalReason, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class ReplicaLostError(Exception):
    """The engine process died or fell silent while the request was in flight, or is not ready."""


class Replica(Protocol):
    """A running (or starting) engine, seen from the gateway's event loop."""

    @property
    def state(self) -> ReplicaState:
        """The present state; `READY` takes requests."""
        ...

    @property
    def progress(self) -> tuple[str, float]:
        """Stage and fraction of the start, for `/ready` and logs."""
        ...

    @property
    def card(self) -> ModelCard | None:
        """What is served; None until first ready."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The latest gauges and totals the engine sent."""
        ...

    def generate(self, request: Submit, hold: Hold | None = None) -> AsyncGenerator[TokenDelta, None]:
        """Run a request; yields deltas of all its choices until each has a `finish_reason`.

        Deltas that the consumer has not yet taken are merged per choice, so a slow consumer holds memory bounded by
        its own `max_tokens`, and come in bounded parts. `hold` is told how many bytes wait; where it raises, what
        waits is dropped, the request is aborted in the engine, and the consumer gets the error. Closing the generator
        (or cancelling its consumer) aborts the request in the engine.

        Raises:
            RequestRefusedError: The engine refused or gave up the request.
            ReplicaLostError: The engine is not ready, died or fell silent.
            Exception: What `hold` raised.
        """
        ...

    async def embed(self, request_id: str, inputs: list[list[int]]) -> list[bytes]:
        """Embed token-id inputs; see `Embedded`. Raises as `generate` does."""
        ...
