"""The arrays of a step: made in main memory, read on the device under the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from kvarn.kernels.adapters import AdapterMemory
from kvarn.kernels.batch import BlockExchange, PagedBatch, StateBatch
from kvarn.kernels.sampling import SamplingTensors
from kvarn.worker.philox import uniforms
from kvarn.worker.slots import BASE_MODEL, SlotTable
from kvarn.worker.step_batch import FlatRows, Ints

BUCKETS = (1, 2, 4, 8, *range(16, 257, 8), *range(272, 513, 16), *range(576, 4097, 64))
"""Numbers of tokens for which a step is captured; smaller steps are filled up."""
NARROWEST = 64
"""Blocks of a sequence that a captured step has room for at least; then powers of two."""

_NONE = np.zeros(0, dtype=np.int64)
Array = TypeVar("Array")
"""numpy's in main memory, torch's on the device."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What the kernels of a step are told by the host. A device may repeat one step for another of the same shape: all
    else is read from `StepArrays`."""

    size: int | None
    """Tokens, sequences and logits, with those that fill the step up; None: the step is not filled up, nor repeated."""
    width: int
    """B: blocks of a sequence in the tables."""
    shares_prefix: bool
    """See `PagedBatch`."""
    adapters: int | None
    """See `AdapterMemory.captured_form`; None also where no row has an adapter."""

    @staticmethod
    def of(
        flat: FlatRows, num_logits: int, adapters: AdapterMemory | None, *, shares_prefix: bool, largest: int
    ) -> BatchShape:
        """The shape for the rows of a plan, of which so many logits are computed. What is repeated are steps in which
        each token's are: sequences decode, or verify proposals.

        Args:
            flat: The rows.
            num_logits: R.
            adapters: Those that rows have; None: no row has one.
            shares_prefix: See `PagedBatch`.
            largest: Tokens of the largest step that is filled up to one of `BUCKETS`; 0: none is.
        """
        tokens, width = len(flat.token_ids), flat.block_tables.shape[1]
        form = None if adapters is None else adapters.captured_form
        may_repeat = flat.exchange is None and (adapters is None or form is not None)
        size = None
        if may_repeat and num_logits == tokens <= largest:
            size = next(bucket for bucket in BUCKETS if bucket >= tokens)
        return BatchShape(size, wide_enough(width) if largest else width, shares_prefix, form)


class StepArrays(NamedTuple, Generic[Array]):
    """What the model reads of a step of S sequences with T tokens, of which R logits are computed."""

    token_ids: Array
    """[T] int64; negative: the token that the slot drew last."""
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
    adapters: Array
    """[T] int64: index of each token's adapter, `BASE_MODEL` for none; empty where no row has one."""
    state_places: Array
    """[S] int64: see `StateBatch`, as the next; both empty where the model has no recurrent states."""
    state_saves: Array
    """[T] int64"""
    logits_rows: Array
    """[R] int64: tokens whose logits are computed."""


class SlotArrays(NamedTuple, Generic[Array]):
    """Where a step finds tokens that were drawn on the device, and leaves those that it draws."""

    token_slots: Array
    """[T] int64: the slot of each token's sequence."""
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


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step before it is on the device."""

    arrays: StepArrays[npt.NDArray[Any]]
    shape: BatchShape
    adapters: AdapterMemory | None
    """None: no row has an adapter."""
    exchange: BlockExchange | None
    """See `PagedBatch`."""
    is_recurrent: bool
    """The model has recurrent states."""

    def batch(self, there: StepArrays[torch.Tensor]) -> PagedBatch:
        """The part that the layers read, of the arrays on the device. All steps of an executor are made here."""
        return PagedBatch(
            positions=there.positions,
            query_starts=there.query_starts,
            context_lens=there.context_lens,
            block_tables=there.block_tables,
            slot_mapping=there.slot_mapping,
            adapters=None if self.adapters is None else self.adapters.batch(there.adapters),
            exchange=self.exchange,
            recurrent_states=StateBatch(there.state_places, there.state_saves) if self.is_recurrent else None,
            shares_prefix=self.shape.shares_prefix,
        )


def step_arrays(
    flat: FlatRows, logits_rows: Ints, shape: BatchShape, adapters: Ints | None, state_saves: Ints | None
) -> StepArrays[npt.NDArray[Any]]:
    """Rows of a plan, filled up with tokens that have no context and nothing to write. Each is a sequence of its own,
    and the sequences that are missing then have no token.

    Args:
        flat: The rows.
        logits_rows: Tokens whose logits are computed.
        shape: What to fill them up to.
        adapters: Of the tokens; None: no row has one.
        state_saves: See `StateBatch`; None: the model has no recurrent states.
    """
    tokens, rows = len(flat.token_ids), len(flat.context_lens)
    more, more_rows = (0, 0) if shape.size is None else (shape.size - tokens, shape.size - rows)
    query_starts, tables = flat.query_starts, flat.block_tables
    if more_rows:
        ends = np.minimum(tokens + 1 + np.arange(more_rows), tokens + more)
        query_starts = np.concatenate([query_starts, ends])
    if tables.shape != (rows + more_rows, shape.width):
        tables = np.zeros((rows + more_rows, shape.width), dtype=np.int32)
        tables[:rows, : flat.block_tables.shape[1]] = flat.block_tables
    return StepArrays(
        token_ids=_filled(flat.token_ids, more, 0),
        positions=_filled(flat.positions, more, 0),
        query_starts=query_starts.astype(np.int32),
        context_lens=_filled(flat.context_lens, more_rows, 0).astype(np.int32),
        block_tables=tables,
        slot_mapping=_filled(flat.slot_mapping, more, -1),
        adapters=_NONE if adapters is None else _filled(adapters, more, BASE_MODEL),
        state_places=_NONE if state_saves is None else _filled(flat.row_slots, more_rows, -1),
        state_saves=_NONE if state_saves is None else _filled(state_saves, more, -1),
        logits_rows=np.concatenate([logits_rows, tokens + np.arange(more)]) if more else logits_rows,
    )


def slot_arrays(
    flat: FlatRows, drawing: Ints, arrays: StepArrays[npt.NDArray[Any]], spare_slot: int
) -> SlotArrays[npt.NDArray[Any]]:
    """The slots of a step's tokens and of its draws. Tokens that fill the step up have `spare_slot`."""
    return SlotArrays(
        token_slots=_filled(flat.row_slots[flat.row_of_token], len(arrays.token_ids) - len(flat.token_ids), spare_slot),
        drawing_slots=_filled(drawing, len(arrays.logits_rows) - len(drawing), spare_slot),
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


def sampling_tensors(draws: DrawArrays[torch.Tensor]) -> SamplingTensors:
    """The part that a draw reads."""
    return SamplingTensors(draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.uniforms)


def wide_enough(blocks: int) -> int:
    """Blocks of a sequence in the tables of captured steps that have room for so many."""
    return max(NARROWEST, 1 << max(0, blocks - 1).bit_length())


def _filled(array: npt.NDArray[Any], more: int, value: Any) -> npt.NDArray[Any]:
    return np.concatenate([array, np.full(more, value, dtype=array.dtype)]) if more else array
