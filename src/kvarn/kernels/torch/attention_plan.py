"""Which blocks a step's queries read: worked out once per step, used by every layer.

A step mixes two kinds of sequences. Those with one query (decode) are many: they become one flat list of
(sequence, block) pairs, so that a layer needs a constant number of tensor operations however many there are. Those with
more queries (prefill chunks) are few and large: each is a small dense attention of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.config.schema import BLOCK_SIZE
from kvarn.kernels.batch import PagedBatch

PAIRS_AT_ONCE = 64
"""(sequence, block) pairs gathered at a time: a copy of so many blocks stays in the processor's cache."""

QUERIES_AT_ONCE = 128
"""Queries of a prefill chunk multiplied at a time: each tile reads no keys after its last query or left of its first
one's window."""


@dataclass(frozen=True, slots=True)
class PairSlice:
    """Pairs first:last of a decode plan, gathered together."""

    first: int
    last: int
    ragged: torch.Tensor
    """[E] int64: those of the slice, counted from `first`, with at least one hidden slot."""
    ragged_hidden: torch.Tensor
    """[E, 1, block_size, 1] bool: their hidden slots."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Sequences with one query: B rows, P (row, block) pairs ordered by row."""

    tokens: torch.Tensor
    """[B] int64: the row's token among the batch's T."""
    blocks: torch.Tensor
    """[P] int64: block of each pair."""
    rows: torch.Tensor
    """[P] int64: row of each pair."""
    hidden: torch.Tensor
    """[P, block_size] bool: slots outside the context or left of the window."""
    slices: tuple[PairSlice, ...]


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Neighbouring queries of one chunk."""

    first_query: int
    last_query: int
    """Counted from the chunk's first query."""
    first_key: int
    last_key: int
    """Keys that at least one of the queries sees, counted from the chunk's first key."""
    visible: torch.Tensor
    """[queries, keys] bool: causal and inside the window."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """One sequence with several queries: N queries, which read L keys."""

    first_token: int
    last_token: int
    """Queries are tokens first_token:last_token of the batch."""
    block_heads: torch.Tensor
    """[G * blocks] int64: indices into the cache seen as [num_blocks * G, block_size, D], ordered by head, so that the
    gathered blocks are the sequence's keys, head by head."""
    offset: int
    """Slots of the first block that lie left of the first query's window."""
    num_keys: int
    """L, counted from `offset`."""
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, slots=True)
class StepBlocks:
    """The reads and writes of one step for the layers that share a window."""

    slots: torch.Tensor
    """[T, G] int64: rows of the cache seen as [num_blocks * G * block_size, D] that this step's tokens fill."""
    decode: DecodePlan | None
    chunks: tuple[ChunkPlan, ...]


def plan_step(batch: PagedBatch, num_kv_heads: int, window: int | None = None) -> StepBlocks:
    """The plan of one step. `window`: tokens a query sees, itself included; None sees all before it."""
    starts = batch.query_starts.to(torch.int64)
    query_lens = starts[1:] - starts[:-1]
    single = query_lens == 1
    decode_rows = single.nonzero().flatten()
    chunk_rows = (query_lens > 1).nonzero().flatten().tolist()
    return StepBlocks(
        slots=_slots(batch, num_kv_heads),
        decode=_plan_decode(batch, starts, decode_rows, window) if len(decode_rows) else None,
        chunks=tuple(_plan_chunk(batch, starts, row, num_kv_heads, window) for row in chunk_rows),
    )


def _slots(batch: PagedBatch, num_kv_heads: int) -> torch.Tensor:
    block, offset = batch.slot_mapping // BLOCK_SIZE, batch.slot_mapping % BLOCK_SIZE
    first = block * (num_kv_heads * BLOCK_SIZE) + offset
    return first[:, None] + torch.arange(num_kv_heads, device=first.device) * BLOCK_SIZE


def _plan_decode(batch: PagedBatch, starts: torch.Tensor, rows: torch.Tensor, window: int | None) -> DecodePlan:
    context = batch.context_lens.to(torch.int64)[rows]
    begin = torch.zeros_like(context) if window is None else (context - window).clamp(min=0)
    first_block = begin // BLOCK_SIZE
    num_blocks = (context + BLOCK_SIZE - 1) // BLOCK_SIZE - first_block
    pair_rows = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), num_blocks)
    pair_starts = num_blocks.cumsum(0) - num_blocks
    pair_index = torch.arange(len(pair_rows), device=rows.device) - pair_starts[pair_rows] + first_block[pair_rows]
    slot = pair_index[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE, device=rows.device)
    hidden = (slot >= context[pair_rows, None]) | (slot < begin[pair_rows, None])
    return DecodePlan(
        tokens=starts[:-1][rows],
        blocks=batch.block_tables[rows[pair_rows], pair_index].to(torch.int64),
        rows=pair_rows,
        hidden=hidden,
        slices=_slice_pairs(hidden),
    )


def _slice_pairs(hidden: torch.Tensor) -> tuple[PairSlice, ...]:
    ragged = hidden.any(1).nonzero().flatten()
    firsts = range(0, len(hidden), PAIRS_AT_ONCE)
    cuts = torch.searchsorted(ragged, torch.arange(0, len(hidden) + PAIRS_AT_ONCE, PAIRS_AT_ONCE).to(ragged.device))
    slices = []
    for index, first in enumerate(firsts):
        own = ragged[int(cuts[index]) : int(cuts[index + 1])]
        last = min(first + PAIRS_AT_ONCE, len(hidden))
        slices.append(PairSlice(first, last, own - first, hidden[own][:, None, :, None]))
    return tuple(slices)


def _plan_chunk(batch: PagedBatch, starts: torch.Tensor, row: int, num_kv_heads: int, window: int | None) -> ChunkPlan:
    first_token, last_token = int(starts[row]), int(starts[row + 1])
    context = int(batch.context_lens[row])
    first_position = context - (last_token - first_token)
    begin = 0 if window is None else max(0, first_position + 1 - window)
    first_block = begin // BLOCK_SIZE
    blocks = batch.block_tables[row, first_block : (context + BLOCK_SIZE - 1) // BLOCK_SIZE].to(torch.int64)
    heads = torch.arange(num_kv_heads, device=blocks.device)
    return ChunkPlan(
        first_token=first_token,
        last_token=last_token,
        block_heads=(blocks * num_kv_heads + heads[:, None]).flatten(),
        offset=begin - first_block * BLOCK_SIZE,
        num_keys=context - begin,
        tiles=_tiles(range(first_position, context), begin, window, blocks.device),
    )


def _tiles(positions: range, begin: int, window: int | None, device: torch.device) -> tuple[QueryTile, ...]:
    """Cut queries at `positions` into tiles; `begin` is the position of the chunk's first key."""
    tiles = []
    for first in range(positions.start, positions.stop, QUERIES_AT_ONCE):
        last = min(first + QUERIES_AT_ONCE, positions.stop)
        first_key = begin if window is None else max(begin, first + 1 - window)
        queries = torch.arange(first, last, device=device)[:, None]
        keys = torch.arange(first_key, last, device=device)
        visible = keys <= queries
        if window is not None:
            visible &= keys > queries - window
        tiles.append(
            QueryTile(
                first_query=first - positions.start,
                last_query=last - positions.start,
                first_key=first_key - begin,
                last_key=last - begin,
                visible=visible,
            )
        )
    return tuple(tiles)
