"""Errors of the worker."""

from __future__ import annotations


class WorkerError(Exception):
    """Base of the worker's errors."""


class ContextTooLongError(WorkerError):
    """Context longer than the model was trained for."""


class PlanError(WorkerError):
    """Plan that contradicts the executor's state: a fault of the scheduler, never of a request."""


class InvalidLogitsError(WorkerError):
    """Logits of a slot are not finite."""

    def __init__(self, slot: int) -> None:
        super().__init__(
            f"slot {slot}: the model's logits are not finite. The weights are damaged or overflow in this dtype: "
            "verify the checkpoint, or serve it with dtype float32."
        )
        self.slot = slot


class ReplayAllocationError(WorkerError):
    """Repeated step that allocated memory of the device, which is a bug."""

    def __init__(self, step: str) -> None:
        super().__init__(f"the repeated step {step} has allocated memory of the device")


class InvalidSamplingError(WorkerError):
    """Sampling parameters that this model cannot meet."""

    def __init__(self, slot: int, reason: str) -> None:
        super().__init__(f"slot {slot}: {reason}")
        self.slot = slot
