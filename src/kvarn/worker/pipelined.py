"""The executor of a device that computes beside the host: one step runs while the next is planned and sent.

Steps whose tokens are drawn on the device from what the host knows beforehand are run ahead: the host sends their
inputs, the device computes, draws, and keeps the tokens for the next step. The others (with masks, penalties, guesses,
log-probabilities or blocks that are moved) are run as `InProcessExecutor` does, once the steps before them have ended.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kvarn.config.schema import BLOCK_SIZE
from kvarn.engine.errors import ProtocolError
from kvarn.engine.plan import RowResult, StepPlan, StepResult
from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.graphs import StepGraphs
from kvarn.kernels.memory import device_allocations
from kvarn.kernels.staging import Fetched, Staging
from kvarn.models import Decoder
from kvarn.worker.constraints import needs_constraints
from kvarn.worker.device_step import (
    BUCKETS,
    BatchShape,
    DrawArrays,
    StepArrays,
    draw_arrays,
    paged_batch,
    sampling_tensors,
    step_arrays,
    wide_enough,
)
from kvarn.worker.errors import InvalidLogitsError, ReplayAllocationError
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.inputs import FlatRows, Ints, flatten_rows
from kvarn.worker.slots import NO_LOGPROBS

IN_FLIGHT = 2


def _no_slots() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Running:
    """A step that was given to the device."""

    plan: StepPlan
    submitted: float
    first_uses: int
    """So far, when it was submitted."""
    slots: Ints = field(default_factory=_no_slots)
    """Of the rows that draw."""
    epochs: Ints = field(default_factory=_no_slots)
    fetched: Fetched | None = None
    result: StepResult | None = None


class PipelinedExecutor(InProcessExecutor):
    """See `kvarn.engine.plan.Executor`, and `InProcessExecutor` for arguments and errors.

    Args:
        fill_up: Fill batches of decoding sequences up to one of `BUCKETS`; by default where the device repeats captured
            steps. The kernels must leave tokens without a slot alone.
    """

    def __init__(self, model: Decoder, *, max_num_seqs: int, fill_up: bool | None = None, **options: Any) -> None:
        super().__init__(model, max_num_seqs=max_num_seqs, **options)
        self.graphs = StepGraphs(self._device)
        self.checks_allocations = False
        """Raise ReplayAllocationError where a repeated step allocates memory of the device. Asking takes a tenth of a
        millisecond, so only tests and benchmarks do."""
        self._fill_up = self.graphs.enabled and model.can_be_captured if fill_up is None else fill_up
        self._running: deque[_Running] = deque()
        self._ended = 0.0
        self._epochs = np.zeros(max_num_seqs, dtype=np.int64)
        """How many sequences each slot has had."""
        self._drawn = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=self._device)
        """The token that each slot drew last; the last entry is for rows that fill a batch up."""
        rows = next((bucket for bucket in BUCKETS if bucket >= max_num_seqs), max_num_seqs)
        blocks = wide_enough(-(-self.max_context_length // BLOCK_SIZE))
        # Room for the largest step that is captured: it reads the same addresses each time.
        self._staging = Staging(self._device, rows * (4 * blocks + 256) + 2**20, IN_FLIGHT)

    @property
    def max_in_flight(self) -> int:
        """One step runs while the next is planned."""
        return IN_FLIGHT

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> None:
        """Give the plan to the device. Raises as `execute`, and ReplayAllocationError."""
        started, first_uses = time.perf_counter(), self._first_uses
        for sequence in plan.new_sequences:
            self._epochs[sequence.slot] += 1
        if self._runs_ahead(plan):
            self._running.append(self._start(plan, started, first_uses))
            return
        for running in self._running:
            self._end(running)
        result = self.execute(plan)
        self._drawn[:-1].copy_(torch.from_numpy(self._slots.last_token))
        self._running.append(_Running(plan, started, first_uses, result=result))

    def collect(self) -> StepResult:
        """Wait for the oldest step. Raises InvalidLogitsError where its logits are not finite."""
        if not self._running:
            raise ProtocolError("no plan was submitted: there is no result to collect")
        return self._end(self._running.popleft())

    @property
    def _first_uses(self) -> int:
        """With the captures."""
        return super()._first_uses + self.graphs.num_captures

    def _runs_ahead(self, plan: StepPlan) -> bool:
        """Whether a step's tokens can be drawn without knowing those of the step before."""
        if plan.masks or plan.kv_stores or plan.kv_loads or self._eagle is not None:
            return False
        if any(row.num_proposals or row.prompt_logprobs for row in plan.rows):
            return False
        new = {sequence.slot: sequence.sampling for sequence in plan.new_sequences}
        if any(needs_constraints(s) or s.logprobs is not None for s in new.values()):
            return False
        old = [row.slot for row in plan.rows if row.slot not in new]
        return (
            not any(slot in self._slots.constraints for slot in old)
            and not (self._slots.num_logprobs[old] != NO_LOGPROBS).any()
        )

    def _start(self, plan: StepPlan, started: float, first_uses: int) -> _Running:
        self._apply(plan)
        if not plan.rows:
            return _Running(plan, started, first_uses)
        self._slots.update_blocks(plan.rows)
        flat = flatten_rows(plan.rows, self._slots)
        drawing = np.array([index for index, row in enumerate(plan.rows) if row.sample], dtype=np.int64)
        adapters = self._adapters_of(flat)
        shape = BatchShape.of(flat, len(drawing), fill_up=self._fill_up, may_repeat=adapters is None)
        slots = flat.row_slots[drawing]
        arrays = step_arrays(flat, drawing, shape, spare_slot=len(self._drawn) - 1)
        draws = draw_arrays(self._slots, slots, len(arrays.drawing_slots))
        fetched = self._give(shape, arrays, draws, adapters, len(slots))
        self._slots.num_output[slots] += 1
        return _Running(plan, started, first_uses, slots, self._epochs[slots], fetched)

    def _give(
        self,
        shape: BatchShape,
        arrays: StepArrays[Any],
        draws: DrawArrays[Any] | None,
        adapters: AdapterBatch | None,
        num_drawn: int,
    ) -> Fetched:
        """Send a step's arrays, have it computed, or repeated, and its tokens sent back."""
        key = (shape, draws is not None)
        is_checked = self.checks_allocations and key in self.graphs
        allocations = device_allocations(self._device) if is_checked else 0
        sent = self._staging.send([*arrays, *(draws or ())])
        inputs = StepArrays(*sent[: len(arrays)])
        columns = None if draws is None else DrawArrays(*sent[len(arrays) :])

        def step() -> tuple[torch.Tensor, ...]:
            return self._compute_and_draw(inputs, adapters, columns)

        tokens, maxima = self.graphs.run(key, step) if shape.repeats else step()
        fetched = Fetched.start([tokens[:num_drawn], maxima[:num_drawn]])
        if is_checked and device_allocations(self._device) != allocations:
            raise ReplayAllocationError(str(key))
        return fetched

    def _adapters_of(self, flat: FlatRows) -> AdapterBatch | None:
        if not self.adapters.indices:
            return None
        indices = self._slots.adapter[flat.row_slots][flat.row_of_token]
        return self.adapters.memory.batch(torch.from_numpy(indices)) if indices.max(initial=-1) >= 0 else None

    def _compute_and_draw(
        self,
        inputs: StepArrays[torch.Tensor],
        adapters: AdapterBatch | None,
        draws: DrawArrays[torch.Tensor] | None,
    ) -> tuple[torch.Tensor, ...]:
        """One step on the device: tokens and largest logits of the rows that draw."""
        kernels = self._model.kernels
        ids = torch.where(inputs.token_ids < 0, self._drawn[inputs.token_slots], inputs.token_ids)
        logits = self._model.forward(ids, paged_batch(inputs, adapters), self._cache, inputs.logits_rows, None)
        tokens, maxima = kernels.most_likely(logits)
        if draws is not None and len(tokens):
            rows = torch.arange(len(tokens), device=tokens.device)
            drawn = kernels.draw_tokens(logits, rows, maxima, sampling_tensors(draws))
            tokens = torch.where(draws.greedy, tokens, drawn)
        self._drawn.index_copy_(0, inputs.drawing_slots, tokens)
        return tokens, maxima

    def _end(self, running: _Running) -> StepResult:
        """The result of a step; its tokens are in the slots afterwards."""
        if running.result is None:
            tokens, maxima = running.fetched.wait() if running.fetched is not None else (running.slots, running.slots)
            for slot, value in zip(running.slots.tolist(), maxima.tolist(), strict=True):
                if not np.isfinite(value):
                    raise InvalidLogitsError(slot)
            same = self._epochs[running.slots] == running.epochs
            self._slots.last_token[running.slots[same]] = tokens[same]
            drawn = iter(tokens.tolist())
            rows = [RowResult(row.slot, [next(drawn)] if row.sample else []) for row in running.plan.rows]
            now = time.perf_counter()
            # One that ran while the next was compiled ended later, too.
            warming = self._first_uses != running.first_uses
            elapsed_s = now - max(running.submitted, self._ended)
            running.result = StepResult(running.plan.step, rows, elapsed_s, warming=warming)
        self._ended = time.perf_counter()
        return running.result
