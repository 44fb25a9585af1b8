"""The executor of a device that computes beside the host: one step runs while the next is planned and sent.

Steps whose tokens are drawn on the device from what the host knows beforehand are run ahead: the host sends their
inputs, the device computes, draws, and keeps the tokens for the next step. The others (with masks, penalties, guesses,
log-probabilities or blocks that are moved) are run as `InProcessExecutor` does, once the steps before them have ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvarn.config.schema import BLOCK_SIZE
from kvarn.engine.errors import ProtocolError
from kvarn.engine.plan import RowResult, StepPlan, StepResult
from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.graphs import StepGraphs
from kvarn.kernels.sampling import SamplingTensors
from kvarn.kernels.staging import Fetched, Staging
from kvarn.models import Decoder
from kvarn.worker.constraints import needs_constraints
from kvarn.worker.errors import InvalidLogitsError
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.inputs import FlatRows, Ints, flatten_rows
from kvarn.worker.philox import uniforms
from kvarn.worker.slots import NO_LOGPROBS

IN_FLIGHT = 2
BUCKETS = (1, 2, 4, 8, *range(16, 257, 8), *range(272, 513, 16), *range(576, 4097, 64))
"""Numbers of sequences that decode together for which a step is captured; smaller ones are filled up."""
NARROWEST = 64
"""Blocks of a sequence that a captured step has room for at least; then powers of two."""


@dataclass(slots=True)
class _Running:
    """A step that was given to the device."""

    plan: StepPlan
    slots: Ints
    """Of the rows that draw."""
    epochs: Ints
    fetched: Fetched | None
    submitted: float
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
        self._fill_up = self.graphs.enabled and model.can_be_captured if fill_up is None else fill_up
        self._running: deque[_Running] = deque()
        self._ended = 0.0
        self._epochs = np.zeros(max_num_seqs, dtype=np.int64)
        """How many sequences each slot has had."""
        self._drawn = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=self._device)
        """The token that each slot drew last; the last entry is for rows that fill a batch up."""
        rows = next((bucket for bucket in BUCKETS if bucket >= max_num_seqs), max_num_seqs)
        blocks = max(NARROWEST, _power_of_two(-(-self.max_context_length // BLOCK_SIZE)))
        # Room for the largest step that is captured: it reads the same addresses each time.
        self._staging = Staging(self._device, rows * (4 * blocks + 256) + 2**20, IN_FLIGHT)

    @property
    def max_in_flight(self) -> int:
        """One step runs while the next is planned."""
        return IN_FLIGHT

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> None:
        """Give the plan to the device. Raises as `execute`."""
        started = time.perf_counter()
        for sequence in plan.new_sequences:
            self._epochs[sequence.slot] += 1
        if self._runs_ahead(plan):
            self._running.append(self._start(plan, started))
            return
        for running in self._running:
            self._end(running)
        result = self.execute(plan)
        self._drawn[:-1].copy_(torch.from_numpy(self._slots.last_token))
        none = np.zeros(0, dtype=np.int64)
        self._running.append(_Running(plan, none, none, None, started, result))

    def collect(self) -> StepResult:
        """Wait for the oldest step. Raises InvalidLogitsError where its logits are not finite."""
        if not self._running:
            raise ProtocolError("no plan was submitted: there is no result to collect")
        return self._end(self._running.popleft())

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

    def _start(self, plan: StepPlan, started: float) -> _Running:
        self._apply(plan)
        none = np.zeros(0, dtype=np.int64)
        if not plan.rows:
            return _Running(plan, none, none, None, started)
        self._slots.update_blocks(plan.rows)
        flat = flatten_rows(plan.rows, self._slots)
        drawing = np.array([index for index, row in enumerate(plan.rows) if row.sample], dtype=np.int64)
        slots = flat.row_slots[drawing]
        decodes = len(flat.token_ids) == len(plan.rows) == len(drawing)
        adapters = self._adapters_of(flat)
        size = len(plan.rows)
        if self._fill_up and decodes and adapters is None:
            size = next((bucket for bucket in BUCKETS if bucket >= size), size)
        arrays = _arrays(flat, drawing, size, width=self._width(flat), spare=len(self._drawn) - 1)
        sampling = self._sampling(slots, size if decodes else len(drawing))
        sent = self._staging.send([*arrays, *sampling])
        inputs, columns = _DeviceInputs(*sent[: len(arrays)]), sent[len(arrays) :]

        def step() -> tuple[torch.Tensor, ...]:
            return self._compute_and_draw(inputs, adapters, columns)

        repeated = self._fill_up and decodes and adapters is None and size in BUCKETS
        key = (size, arrays[5].shape[1], bool(sampling))
        tokens, maxima = self.graphs.run(key, step) if repeated else step()
        self._slots.num_output[slots] += 1
        fetched = Fetched.start([tokens[: len(slots)], maxima[: len(slots)]])
        return _Running(plan, slots, self._epochs[slots], fetched, started)

    def _width(self, flat: FlatRows) -> int:
        """Blocks of a sequence in the tables that are sent."""
        width = flat.block_tables.shape[1]
        return width if not self._fill_up else max(NARROWEST, _power_of_two(width))

    def _adapters_of(self, flat: FlatRows) -> AdapterBatch | None:
        if not self.adapters.indices:
            return None
        indices = self._slots.adapter[flat.row_slots][flat.row_of_token]
        return self.adapters.memory.batch(torch.from_numpy(indices)) if indices.max(initial=-1) >= 0 else None

    def _sampling(self, slots: Ints, size: int) -> list[npt.NDArray[Any]]:
        """Columns of `SamplingTensors` and which rows are greedy; nothing where all are."""
        table = self._slots
        temperature = table.temperature[slots]
        if not (temperature > 0).any():
            return []
        numbers = uniforms(table.seed[slots], table.num_output[slots])
        greedy = temperature <= 0
        columns = (np.where(greedy, np.float32(1), temperature), table.top_k[slots], table.top_p[slots])
        fill = (np.float32(1), np.int64(0), np.float64(1), np.float32(0), np.float64(0), np.True_)
        more = size - len(slots)
        every: tuple[npt.NDArray[Any], ...] = (*columns, table.min_p[slots], numbers, greedy)
        return [_filled(column, more, value) for column, value in zip(every, fill, strict=True)]

    def _compute_and_draw(
        self, inputs: _DeviceInputs, adapters: AdapterBatch | None, sampling: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """One step on the device: tokens and largest logits of the rows that draw. `sampling`: see `_sampling`."""
        kernels = self._model.kernels
        ids = torch.where(inputs.token_ids < 0, self._drawn[inputs.token_slots], inputs.token_ids)
        logits = self._model.forward(ids, inputs.batch(adapters), self._cache, inputs.logits_rows, None)
        tokens, maxima = kernels.most_likely(logits)
        if sampling and len(tokens):
            *columns, greedy = sampling
            rows = torch.arange(len(tokens), device=tokens.device)
            drawn = kernels.draw_tokens(logits, rows, maxima, SamplingTensors(*columns))
            tokens = torch.where(greedy, tokens, drawn)
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
            running.result = StepResult(running.plan.step, rows, now - max(running.submitted, self._ended))
        self._ended = time.perf_counter()
        return running.result


@dataclass(frozen=True, slots=True)
class _DeviceInputs:
    """What a step reads, on the device."""

    token_ids: torch.Tensor
    """[T] int64; negative: the token that the slot drew last."""
    token_slots: torch.Tensor
    positions: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    logits_rows: torch.Tensor
    drawing_slots: torch.Tensor

    def batch(self, adapters: AdapterBatch | None) -> PagedBatch:
        """For the model."""
        return PagedBatch(
            self.positions, self.query_starts, self.context_lens, self.block_tables, self.slot_mapping, adapters
        )


def _arrays(flat: FlatRows, drawing: Ints, size: int, width: int, spare: int) -> Sequence[npt.NDArray[Any]]:
    """The first fields of `_DeviceInputs`, decoding rows filled up to `size` rows that have no slot and no context."""
    more = size - len(flat.row_slots)
    starts = np.concatenate([flat.query_starts, flat.query_starts[-1] + 1 + np.arange(more)])
    tables = np.zeros((size, width), dtype=np.int32)
    tables[: len(flat.block_tables), : flat.block_tables.shape[1]] = flat.block_tables
    token_slots = flat.row_slots[flat.row_of_token]
    logits_rows = np.concatenate([flat.query_starts[1:][drawing] - 1, flat.query_starts[-1] + np.arange(more)])
    return (
        _filled(flat.token_ids, more, 0),
        _filled(token_slots, more, spare),
        _filled(flat.positions, more, 0),
        starts.astype(np.int32),
        _filled(flat.context_lens, more, 0).astype(np.int32),
        tables,
        _filled(flat.slot_mapping, more, -1),
        logits_rows,
        _filled(flat.row_slots[drawing], more, spare),
    )


def _filled(array: npt.NDArray[Any], more: int, value: Any) -> npt.NDArray[Any]:
    return np.concatenate([array, np.full(more, value, dtype=array.dtype)]) if more else array


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
