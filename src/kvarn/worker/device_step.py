"""The arrays of a step that runs ahead: made in main memory, read on the device under the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.sampling import SamplingTensors
from kvarn.worker.inputs import FlatRows, Ints
from kvarn.worker.philox import uniforms
from kvarn.worker.slots import SlotTable

BUCKETS = (1, 2, 4, 8, *range(16, 257, 8), *range(272, 513, 16), *range(576, 4097, 64))
"""Numbers of sequences that decode together for which a step is captured; smaller ones are filled up."""
NARROWEST = 64
"""Blocks of a sequence that a captured step has room for at least; then powers of two."""

Array = TypeVar("Array")
"""numpy's in main memory, torch's on the device."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Sizes that steps have in common, so that a device may repeat one for another."""

    rows: int
    """S: sequences, with those that fill the batch up."""
    width: int
    """B: blocks of a sequence in the tables."""
    decodes: bool
    """Each sequence computes and draws one token."""
    repeats: bool
    """Of a size that is captured."""

    @staticmethod
    def of(flat: FlatRows, num_drawing: int, *, fill_up: bool, may_repeat: bool) -> BatchShape:
        """The shape for the rows of a plan, `num_drawing` of which draw a token. `fill_up`: up to one of `BUCKETS`, for
        rows that `may_repeat`."""
        rows, width = flat.block_tables.shape
        decodes = len(flat.token_ids) == rows == num_drawing
        repeats = fill_up and decodes and may_repeat and rows <= BUCKETS[-1]
        if repeats:
            rows = next(bucket for bucket in BUCKETS if bucket >= rows)
        return BatchShape(rows, wide_enough(width) if fill_up else width, decodes, repeats)


class StepArrays(NamedTuple, Generic[Array]):
    """What the model reads of a step of S sequences with T tokens, R of which draw."""

    token_ids: Array
    """[T] int64; negative: the token that the slot drew last."""
    token_slots: Array
    """[T] int64: the slot of each token's sequence."""
    positions: Array
    """[T] int64"""
    query_starts: Array
    """[S + 1] int32"""
    context_lens: Array
    """[S] int32"""
    block_tables: Array
    """[S, B] int32"""
    slot_mapping: Array
    """[T] int64; -1: the token goes nowhere."""
    logits_rows: Array
    """[R] int64: tokens whose logits are computed."""
    drawing_slots: Array
    """[R] int64: slots that keep what is drawn."""


class DrawArrays(NamedTuple, Generic[Array]):
    """How R tokens are drawn: `SamplingTensors`, and which rows take the likeliest token instead."""

    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    uniforms: Array
    greedy: Array
    """[R] bool"""


def step_arrays(flat: FlatRows, drawing: Ints, shape: BatchShape, spare_slot: int) -> StepArrays[npt.NDArray[Any]]:
    """Rows of a plan, filled up with rows that have one token, no context and nothing to write.

    Args:
        flat: The rows.
        drawing: Indices of those that draw.
        shape: What to fill them up to.
        spare_slot: Where rows that fill the batch up keep what they draw.
    """
    more = shape.rows - len(flat.row_slots)
    end = flat.query_starts[-1]
    tables = np.zeros((shape.rows, shape.width), dtype=np.int32)
    tables[: len(flat.block_tables), : flat.block_tables.shape[1]] = flat.block_tables
    return StepArrays(
        token_ids=_filled(flat.token_ids, more, 0),
        token_slots=_filled(flat.row_slots[flat.row_of_token], more, spare_slot),
        positions=_filled(flat.positions, more, 0),
        query_starts=np.concatenate([flat.query_starts, end + 1 + np.arange(more)]).astype(np.int32),
        context_lens=_filled(flat.context_lens, more, 0).astype(np.int32),
        block_tables=tables,
        slot_mapping=_filled(flat.slot_mapping, more, -1),
        logits_rows=np.concatenate([flat.query_starts[1:][drawing] - 1, end + np.arange(more)]),
        drawing_slots=_filled(flat.row_slots[drawing], more, spare_slot),
    )


def draw_arrays(table: SlotTable, slots: Ints, size: int) -> DrawArrays[npt.NDArray[Any]] | None:
    """How these slots draw, filled up to `size` rows that take the likeliest token; None where all of them do."""
    temperature, more = table.temperature[slots], size - len(slots)
    greedy = temperature <= 0
    if greedy.all():
        return None
    return DrawArrays(
        temperature=_filled(np.where(greedy, np.float32(1), temperature), more, 1),
        top_k=_filled(table.top_k[slots], more, 0),
        top_p=_filled(table.top_p[slots], more, 1),
        min_p=_filled(table.min_p[slots], more, 0),
        uniforms=_filled(uniforms(table.seed[slots], table.num_output[slots]), more, 0),
        greedy=_filled(greedy, more, True),
    )


def paged_batch(step: StepArrays[torch.Tensor], adapters: AdapterBatch | None) -> PagedBatch:
    """The part that attention reads."""
    return PagedBatch(
        step.positions, step.query_starts, step.context_lens, step.block_tables, step.slot_mapping, adapters
    )


def sampling_tensors(draws: DrawArrays[torch.Tensor]) -> SamplingTensors:
    """The part that a draw reads."""
    return SamplingTensors(draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.uniforms)


def wide_enough(blocks: int) -> int:
    """Blocks of a sequence in the tables of captured steps that have room for so many."""
    return max(NARROWEST, 1 << max(0, blocks - 1).bit_length())


def _filled(array: npt.NDArray[Any], more: int, value: Any) -> npt.NDArray[Any]:
    return np.concatenate([array, np.full(more, value, dtype=array.dtype)]) if more else array
