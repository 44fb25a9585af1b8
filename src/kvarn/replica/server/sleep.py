"""Sleeping model: its weights are in main memory, and nothing of it is on the GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvarn.kernels.device.memory import give_back_freed
from kvarn.kernels.device.offload import Offloaded, tensors_of
from kvarn.models import Decoder
from kvarn.replica.spec import ReportProgress

if TYPE_CHECKING:
    from kvarn.replica.server.generate import GenerateService

Rebuild = Callable[[Callable[[], None], ReportProgress], "GenerateService"]
"""Makes the service of a model again, given a function that restores its weights, and the report of progress."""


class SleepingModel:
    """Takes the weights off the device. The service that used them must be shut down and forgotten: its KV cache and
    its captured steps go with it. Weights of the compiled kernels are in main memory already, and stay where they are.
    """

    def __init__(self, model: Decoder, rebuild: Rebuild) -> None:
        self._rebuild = rebuild
        # An executor and what it calls refer to each other, and were taken out of all collections at the start.
        gc.unfreeze()
        gc.collect()
        self._weights = Offloaded(tensors_of(model) if model.kernels.packer.may_move else ())
        self.nbytes = self._weights.nbytes  # bytes of the weights that were moved
        give_back_freed(model.kernels.device.torch_device)

    def wake(self, report: ReportProgress) -> GenerateService:
        """Bring the weights back and make a service with a new KV cache. Raises what building one does."""
        return self._rebuild(self._weights.restore, report)
