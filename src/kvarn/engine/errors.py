"""Errors of the engine. Each says what happened and what the caller can do about it."""

from __future__ import annotations

from kvarn.wire.messages import RefusalReason


class EngineError(Exception):
    """Base of the engine's errors."""


class AdmissionError(EngineError):
    """A request was refused at once. Nothing of it is kept: the caller may send it again, here or elsewhere."""

    def __init__(self, reason: RefusalReason, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason  # a word for the metrics
        self.retry_after_s = retry_after_s
        """Seconds after which a retry is likely to be taken; None where waiting does not help."""


class OutOfBlocksError(EngineError):
    """No KV block is free and none can be evicted: preempt a sequence, then try again."""


class IntegrityError(EngineError):
    """The engine's records contradict each other: a bug. The replica must not go on serving from this cache."""


class ProtocolError(EngineError):
    """An executor's result does not answer the plan it was given: a bug in the executor."""
