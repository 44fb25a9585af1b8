"""The runner of a device that computes beside the host: one copy a step, and steps that the device repeats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Unpack

import numpy.typing as npt
import torch

from kvarn.costs.cache_plan import captured_bytes
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.device.graphs import StepGraphs, recorder_for
from kvarn.kernels.device.memory import device_allocations
from kvarn.kernels.device.staging import Staging
from kvarn.models import Decoder
from kvarn.models.decoder import HiddenStates
from kvarn.shapes import BLOCK_SIZE
from kvarn.worker.errors import ReplayAllocationError
from kvarn.worker.model_runner import Compute, ModelRunner, RunnerOptions
from kvarn.worker.step_batch import StepBatch
from kvarn.worker.step_sizes import BUCKETS, captured_width

IN_FLIGHT = 2
"""Steps that the device may be given before the first of them has run."""
MIN_REPEATED = 64
"""Smallest `max_repeated`: few sequences may verify many proposals."""


class GraphRunner(ModelRunner):
    """Repeats steps of a shape that it has computed before: whole ones, or up to the last layer.

    `fill_up`: fill steps that may be repeated up to one of `BUCKETS`; by default where the device repeats captured
    ones. The kernels must leave tokens without a slot alone.
    """

    def __init__(self, model: Decoder, *, fill_up: bool | None = None, **options: Unpack[RunnerOptions]) -> None:
        super().__init__(model, **options)
        max_num_seqs = options["max_num_seqs"]
        self.checks_allocations = False
        """Raise ReplayAllocationError where a repeated step allocates memory of the device. Asking takes a tenth of a
        millisecond, so only tests and benchmarks do."""
        largest = next((bucket for bucket in BUCKETS if bucket >= max(max_num_seqs, MIN_REPEATED)), BUCKETS[-1])
        self.graphs = StepGraphs(self.device, recorder_for(self.device, captured_bytes(model.spec, largest)))
        fill_up = self.graphs.enabled and model.can_be_captured if fill_up is None else fill_up
        if fill_up and self.eagle is None:
            self.max_repeated = largest
        blocks = captured_width(-(-self.max_context_length // BLOCK_SIZE))
        # Room for the largest step that is repeated: it reads the same addresses each time.
        num_bytes = max(max_num_seqs, self.max_repeated) * (4 * blocks + 256) + 2**20
        self._staging = Staging(self.device, num_bytes, IN_FLIGHT)

    @property
    def first_uses(self) -> int:
        return super().first_uses + self.graphs.num_captures

    def launch(
        self, kind: str, batch: StepBatch, others: Sequence[npt.NDArray[Any]], compute: Compute
    ) -> tuple[torch.Tensor, ...]:
        key = (batch.key, kind)
        is_checked = self.checks_allocations and key in self.graphs
        allocations = device_allocations(self.device) if is_checked else 0
        tensors = self._staging.send([*batch.arrays, *others])
        count = len(tensors) - len(others)

        def step() -> tuple[torch.Tensor, ...]:
            return compute(*batch.on_device(tensors[:count]), tensors[count:])

        if batch.bucket is None:
            return step()
        results = self.graphs.run(key, step)
        if is_checked and device_allocations(self.device) != allocations:
            raise ReplayAllocationError(str(key))
        return results

    def last_hidden(self, batch: StepBatch, hidden_states: HiddenStates | None) -> torch.Tensor:
        if batch.bucket is None:
            return super().last_hidden(batch, hidden_states)
        kept = self._kept_hidden

        def compute(
            token_ids: torch.Tensor, paged: PagedBatch, logits_rows: torch.Tensor, _: list[torch.Tensor]
        ) -> tuple[torch.Tensor, ...]:
            hidden = self.model.last_hidden(token_ids, paged, self.cache, logits_rows, hidden_states)
            return (kept[: len(hidden)].copy_(hidden),)

        return self.launch("hidden", batch, (), compute)[0]

    @cached_property
    def _kept_hidden(self) -> torch.Tensor:
        """Hidden states of repeated steps, of all shapes in the same memory."""
        dtype = self.model.kernels.operations.activation_dtype(self.model.dtype)
        return torch.empty((self.max_repeated, self.model.spec.hidden_size), dtype=dtype, device=self.device)
