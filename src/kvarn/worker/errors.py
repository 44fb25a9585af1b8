"""What can go wrong in the worker, each with what to do about it."""

from __future__ import annotations


class WorkerError(Exception):
    """Base of the worker's errors."""


class CacheTooSmallError(WorkerError):
    """The KV cache does not hold even one sequence of the longest length."""


class CacheTooLargeError(WorkerError):
    """The KV cache asked for does not fit into the machine's memory."""


class ContextTooLongError(WorkerError):
    """A context longer than the model was trained for was asked for."""


class PlanError(WorkerError):
    """A plan contradicts the executor's state: a fault of the scheduler, never of a request."""


class InvalidLogitsError(WorkerError):
    """The model gave logits that are no numbers for a slot."""

    def __init__(self, slot: int) -> None:
        super().__init__(
            f"slot {slot}: the model's logits are not finite. The weights are damaged or overflow in this dtype: "
            "verify the checkpoint, or serve it with dtype float32."
        )
        self.slot = slot


class ReplayAllocationError(WorkerError):
    """A repeated step has taken memory of the device, which it shall never do."""

    def __init__(self, step: str) -> None:
        super().__init__(f"the repeated step {step} has allocated memory of the device")


class InvalidSamplingError(WorkerError):
    """The sampling parameters of a slot cannot be met by this model."""

    def __init__(self, slot: int, reason: str) -> None:
        super().__init__(f"slot {slot}: {reason}")
        self.slot = slot
