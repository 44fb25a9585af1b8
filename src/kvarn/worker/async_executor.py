"""The executor of a device that computes beside the host: one step runs while the next is planned and sent.

Steps whose tokens are drawn on the device from what the host knows beforehand are run ahead: the host sends their
inputs, the device computes, draws, and keeps the tokens for the next step. The others (with masks, penalties, guesses
or log-probabilities) wait for the steps before them, and their tokens are drawn as by `InProcessExecutor`. The device
repeats steps of a shape that it has computed before, of either kind: whole ones, or up to the last layer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvarn.clock import SYSTEM_CLOCK
from kvarn.engine.errors import ProtocolError
from kvarn.engine.plan import RowResult, StepPlan, StepResult
from kvarn.kernels.device.graphs import StepGraphs, recorder_for
from kvarn.kernels.device.memory import device_allocations
from kvarn.kernels.device.staging import Fetched, Staging
from kvarn.models import Decoder
from kvarn.models.decoder import HiddenStates
from kvarn.shapes import BLOCK_SIZE
from kvarn.worker.constraints import needs_constraints
from kvarn.worker.device_step import (
    BUCKETS,
    DrawArrays,
    HostStep,
    SlotArrays,
    StepArrays,
    draw_arrays,
    sampling_tensors,
    slot_arrays,
    wide_enough,
)
from kvarn.worker.errors import InvalidLogitsError, ReplayAllocationError
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.memory import captured_bytes
from kvarn.worker.slots import NO_LOGPROBS
from kvarn.worker.step_batch import Ints, flatten_rows

IN_FLIGHT = 2
FEWEST = 64
"""Tokens of the largest step that is repeated, at least: few sequences may verify many proposals."""


def _no_slots() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Running:
    """A step that was given to the device."""

    plan: StepPlan
    submitted: float
    first_uses: int
    """So far, when it was submitted."""
    transfer_s: float = 0.0
    slots: Ints = field(default_factory=_no_slots)
    """Of the rows that draw."""
    epochs: Ints = field(default_factory=_no_slots)
    fetched: Fetched | None = None
    result: StepResult | None = None


class AsyncExecutor(InProcessExecutor):
    """See `kvarn.engine.plan.Executor`, and `InProcessExecutor` for arguments and errors.

    Args:
        fill_up: Fill steps that may be repeated up to one of `BUCKETS`; by default where the device repeats captured
            ones. The kernels must leave tokens without a slot alone.
    """

    def __init__(self, model: Decoder, *, max_num_seqs: int, fill_up: bool | None = None, **options: Any) -> None:
        super().__init__(model, max_num_seqs=max_num_seqs, **options)
        self.checks_allocations = False
        """Raise ReplayAllocationError where a repeated step allocates memory of the device. Asking takes a tenth of a
        millisecond, so only tests and benchmarks do."""
        self._running: deque[_Running] = deque()
        self._ended = 0.0
        self._epochs = np.zeros(max_num_seqs, dtype=np.int64)
        """How many sequences each slot has had."""
        self._drawn = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=self._device)
        """The token that each slot drew last; the last entry is for rows that fill a batch up."""
        largest = next((bucket for bucket in BUCKETS if bucket >= max(max_num_seqs, FEWEST)), BUCKETS[-1])
        self.graphs = StepGraphs(self._device, recorder_for(self._device, captured_bytes(model.spec, largest)))
        fill_up = self.graphs.enabled and model.can_be_captured if fill_up is None else fill_up
        if fill_up and self._eagle is None:
            self._largest = largest
        blocks = wide_enough(-(-self.max_context_length // BLOCK_SIZE))
        # Room for the largest step that is repeated: it reads the same addresses each time.
        num_bytes = max(max_num_seqs, self._largest) * (4 * blocks + 256) + 2**20
        self._staging = Staging(self._device, num_bytes, IN_FLIGHT)

    @property
    def max_in_flight(self) -> int:
        """One step runs while the next is planned."""
        return IN_FLIGHT

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> None:
        """Give the plan to the device. Raises as `execute`, and ReplayAllocationError."""
        if self.runs_ahead(plan):
            self._run_ahead(plan)
            return
        started, first_uses = SYSTEM_CLOCK.now(), self._first_uses
        self._end_all(plan)
        result = self.execute(plan)
        self._send_last_tokens()
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

    @torch.inference_mode()
    def follow(self, plan: StepPlan, *, ahead: bool = False) -> None:
        """See `InProcessExecutor.follow`. Raises InvalidLogitsError where logits of an earlier step are not finite."""
        if not ahead:
            self._end_all(plan)
            self._running.clear()
            super().follow(plan, ahead=False)
            return
        while len(self._running) >= IN_FLIGHT:
            self.collect()
        self._run_ahead(plan)

    def drawn_here(self) -> list[tuple[int, list[int]]]:
        """See `InProcessExecutor.drawn_here`: what the host drew."""
        result = self._running[-1].result if self._running else None
        return [] if result is None else [(row.slot, row.token_ids) for row in result.rows if row.token_ids]

    @torch.inference_mode()
    def learn(self, drawn: Sequence[tuple[int, list[int]]]) -> None:
        """See `InProcessExecutor.learn`."""
        super().learn(drawn)
        self._send_last_tokens()

    def transfer_blocks(self, plan: StepPlan) -> float:
        """See `InProcessExecutor.transfer_blocks`: between two steps."""
        for running in self._running:
            self._end(running)
        return super().transfer_blocks(plan)

    def runs_ahead(self, plan: StepPlan) -> bool:
        """Whether a step's tokens can be drawn without knowing those of the step before."""
        if plan.masks or self._eagle is not None:
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

    def _run_ahead(self, plan: StepPlan) -> None:
        started, first_uses = SYSTEM_CLOCK.now(), self._first_uses
        self._count_sequences(plan)
        transfer_s = self.transfer_blocks(plan) if plan.kv_stores or plan.kv_loads else 0.0
        self._running.append(self._start(plan, started, first_uses, transfer_s))

    def _end_all(self, plan: StepPlan) -> None:
        """Wait for all steps, before a plan whose tokens the host draws."""
        self._count_sequences(plan)
        for running in self._running:
            self._end(running)

    def _count_sequences(self, plan: StepPlan) -> None:
        for sequence in plan.new_sequences:
            self._epochs[sequence.slot] += 1

    def _send_last_tokens(self) -> None:
        self._drawn[:-1].copy_(torch.from_numpy(self._slots.last_token))

    def _start(self, plan: StepPlan, started: float, first_uses: int, transfer_s: float) -> _Running:
        self._apply(plan)
        if not plan.rows:
            return _Running(plan, started, first_uses, transfer_s)
        self._slots.update_blocks(plan.rows)
        flat = flatten_rows(plan.rows, self._slots)
        drawing = np.array([index for index, row in enumerate(plan.rows) if row.sample], dtype=np.int64)
        slots = flat.row_slots[drawing]
        step = self._host_step(plan.rows, flat, flat.query_starts[1:][drawing] - 1)
        of_slots = slot_arrays(flat, slots, step.arrays, spare_slot=len(self._drawn) - 1)
        draws = draw_arrays(self._slots, slots, len(step.arrays.logits_rows))

        def compute(there: StepArrays[torch.Tensor], others: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            places = SlotArrays(*others[: len(of_slots)])
            columns = None if draws is None else DrawArrays(*others[len(of_slots) :])
            return self._compute_and_draw(step, there, places, columns)

        kind = "greedy" if draws is None else "drawn"
        tokens, maxima = self._give(kind, step, [*of_slots, *(draws or ())], compute)
        fetched = Fetched.start([tokens[: len(slots)], maxima[: len(slots)]])
        self._slots.num_output[slots] += 1
        return _Running(plan, started, first_uses, transfer_s, slots, self._epochs[slots], fetched)

    def _give(
        self,
        kind: str,
        step: HostStep,
        others: Sequence[npt.NDArray[Any]],
        compute: Callable[[StepArrays[torch.Tensor], list[torch.Tensor]], tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor, ...]:
        """Send a step's arrays, and others, and have it computed, or repeated. `kind` names what is computed."""
        key = (step.shape, kind)
        is_checked = self.checks_allocations and key in self.graphs
        allocations = device_allocations(self._device) if is_checked else 0
        sent = self._staging.send([*step.arrays, *others])
        there, others_there = StepArrays(*sent[: len(step.arrays)]), sent[len(step.arrays) :]
        if step.shape.size is None:
            return compute(there, others_there)
        results = self.graphs.run(key, lambda: compute(there, others_there))
        if is_checked and device_allocations(self._device) != allocations:
            raise ReplayAllocationError(str(key))
        return results

    def _compute_and_draw(
        self,
        step: HostStep,
        there: StepArrays[torch.Tensor],
        places: SlotArrays[torch.Tensor],
        draws: DrawArrays[torch.Tensor] | None,
    ) -> tuple[torch.Tensor, ...]:
        """One step on the device: tokens and largest logits of the rows that draw."""
        kernels = self._model.kernels
        ids = torch.where(there.token_ids < 0, self._drawn[places.token_slots], there.token_ids)
        logits = self._model.forward(ids, step.batch(there), self._cache, there.logits_rows, None)
        tokens, maxima = kernels.operations.most_likely(logits)
        if draws is not None and len(tokens):
            rows = torch.arange(len(tokens), device=tokens.device)
            drawn = kernels.operations.draw_tokens(logits, rows, maxima, sampling_tensors(draws))
            tokens = torch.where(draws.greedy, tokens, drawn)
        self._drawn.index_copy_(0, places.drawing_slots, tokens)
        return tokens, maxima

    def _last_hidden(self, step: HostStep, hidden_states: HiddenStates | None) -> torch.Tensor:
        kept = None if step.shape.size is None else self._kept_hidden

        def compute(there: StepArrays[torch.Tensor], _: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            batch = step.batch(there)
            hidden = self._model.last_hidden(there.token_ids, batch, self._cache, there.logits_rows, hidden_states)
            return (hidden if kept is None else kept[: len(hidden)].copy_(hidden),)

        return self._give("hidden", step, [], compute)[0]

    @cached_property
    def _kept_hidden(self) -> torch.Tensor:
        """Where repeated steps leave what logits are computed from: those of all shapes in the same memory."""
        dtype = self._model.kernels.operations.activation_dtype(self._model.dtype)
        return torch.empty((self._largest, self._model.spec.hidden_size), dtype=dtype, device=self._device)

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
            now = SYSTEM_CLOCK.now()
            # One that ran while the next was compiled ended later, too.
            warming = self._first_uses != running.first_uses
            elapsed_s = now - max(running.submitted, self._ended)
            running.result = StepResult(running.plan.step, rows, elapsed_s, running.transfer_s, warming)
            self._ended = now
        return running.result
