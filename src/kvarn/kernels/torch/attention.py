"""Paged attention in torch: gathers only the blocks in use, a piece at a time, and accumulates in float32.

A step mixes two kinds of sequences. Those with one query (decode) are many: they become one flat list of
(sequence, block) pairs, so that a layer needs a constant number of tensor operations however many there are. Those with
more queries (prefill chunks) are few and large: each is a small dense attention of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.torch.linear import rms_norm
from kvarn.shapes import BLOCK_SIZE

PAIRS_AT_ONCE = 64
"""(sequence, block) pairs gathered at a time: a copy of so many blocks stays in the processor's cache."""

QUERIES_AT_ONCE = 128
"""Queries of a prefill chunk multiplied at a time: each tile reads no keys after its last query or left of its first
one's window."""


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

    def slices(self) -> list[slice]:
        return [slice(first, first + PAIRS_AT_ONCE) for first in range(0, len(self.rows), PAIRS_AT_ONCE)]


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """One sequence with several queries: N queries, which read L keys."""

    first_token: int
    last_token: int
    """Queries are tokens first_token:last_token of the batch."""
    positions: range
    """Positions of the queries in their sequence."""
    first_key: int
    """Position of the first key: the others are left of the first query's window."""
    block_heads: torch.Tensor
    """[G * blocks] int64: indices into the cache seen as [num_blocks * G, block_size, D], ordered by head, so that the
    gathered blocks are the sequence's keys, head by head."""

    @property
    def num_keys(self) -> int:
        """L."""
        return self.positions.stop - self.first_key


@dataclass(frozen=True, slots=True)
class TorchAttentionMetadata:
    heads: HeadShape
    window: int | None
    slots: torch.Tensor
    """[T * G] int64: rows of the cache seen as [num_blocks * G * block_size, D] that this step's tokens fill."""
    decode: DecodePlan | None
    chunks: tuple[ChunkPlan, ...]

    def run(
        self, qkv: torch.Tensor, rotation: Rotation, layer: AttentionLayer, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        queries, kv, dim = self.heads
        query_key = qkv[:, : (queries + kv) * dim].view(-1, queries + kv, dim)
        if layer.norm is not None:
            query_key = rms_norm(query_key, layer.norm)
        query_key = rotate(query_key, rotation)
        write_rows(query_key[:, queries:], keys, self.slots)
        write_rows(qkv[:, (queries + kv) * dim :], values, self.slots)
        return self.attend(query_key[:, :queries], keys, values, layer).flatten(1)

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: AttentionLayer
    ) -> torch.Tensor:
        """Causal attention of queries [T, H, D] over the cached blocks of their own sequences: [T, H, value size].

        Decode rows together, then each prefill chunk.
        """
        own_type = queries.to(keys.dtype)
        out = queries.new_empty((*queries.shape[:2], values.shape[-1]))
        if self.decode is not None:
            tokens = self.decode.tokens
            out[tokens] = _decode(own_type[tokens], keys, values, self.decode, layer).to(out.dtype)
        for chunk in self.chunks:
            own = slice(chunk.first_token, chunk.last_token)
            out[own] = _chunk(own_type[own], keys, values, chunk, self.window, layer).to(out.dtype)
        return out


def write_rows(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Copy rows of numbers [N * D] into the slots [N] of a cache seen as [slots, D]."""
    dim = cache.shape[-1]
    cache.view(-1, dim).index_copy_(0, slots, rows.reshape(-1, dim).to(cache.dtype))


def plan_attention(batch: PagedBatch, heads: HeadShape, window: int | None = None) -> TorchAttentionMetadata:
    """The plan of one step. `window`: tokens a query sees, itself included; None sees all before it."""
    starts = batch.query_starts.to(torch.int64)
    query_lens = starts[1:] - starts[:-1]
    decode_rows = (query_lens == 1).nonzero().flatten()
    chunk_rows = (query_lens > 1).nonzero().flatten().tolist()
    block, offset = batch.slot_mapping // BLOCK_SIZE, batch.slot_mapping % BLOCK_SIZE
    first_slots = block * (heads.kv * BLOCK_SIZE) + offset
    slots = first_slots[:, None] + torch.arange(heads.kv, device=block.device) * BLOCK_SIZE
    return TorchAttentionMetadata(
        heads=heads,
        window=window,
        slots=slots.flatten(),
        decode=_plan_decode(batch, starts, decode_rows, window) if len(decode_rows) else None,
        chunks=tuple(_plan_chunk(batch, starts, row, heads.kv, window) for row in chunk_rows),
    )


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
    )


def _plan_chunk(batch: PagedBatch, starts: torch.Tensor, row: int, num_kv_heads: int, window: int | None) -> ChunkPlan:
    first_token, last_token = int(starts[row]), int(starts[row + 1])
    context = int(batch.context_lens[row])
    first_position = context - (last_token - first_token)
    first_key = 0 if window is None else max(0, first_position + 1 - window)
    last_block = (context + BLOCK_SIZE - 1) // BLOCK_SIZE
    blocks = batch.block_tables[row, first_key // BLOCK_SIZE : last_block].to(torch.int64)
    heads = torch.arange(num_kv_heads, device=blocks.device)
    return ChunkPlan(
        first_token=first_token,
        last_token=last_token,
        positions=range(first_position, context),
        first_key=first_key,
        block_heads=(blocks * num_kv_heads + heads[:, None]).flatten(),
    )


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x [T, heads, D] turned; the first half of the turned part is paired with the second (the Hugging Face layout).

    Computed in float32.
    """
    half = rotation.cos.shape[-1]
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]
    x1, x2 = x[..., :half], x[..., half : 2 * half]
    out = torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1).to(x.dtype)
    return out if 2 * half == x.shape[-1] else torch.cat([out, x[..., 2 * half :]], -1)


def _decode(
    queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, plan: DecodePlan, layer: AttentionLayer
) -> torch.Tensor:
    """Attention of B single queries [B, H, D] over their blocks: [B, H, numbers in a value].

    Each (row, block) pair is multiplied on its own; a softmax over the pairs of one row joins them (as in
    Flash-Decoding, Dao et al. 2023). Sums run over a row's own pairs in order, so that no row depends on its
    neighbours.
    """
    num_rows, num_heads, dim = queries.shape
    num_kv_heads = key_cache.shape[1]
    group = num_heads // num_kv_heads
    scores = _pair_scores(queries.view(num_rows, num_kv_heads, group, dim), key_cache, plan).mul_(layer.scale)
    if layer.softcap is not None:
        scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
    scores.masked_fill_(plan.hidden[:, None, None, :], float("-inf"))

    index = plan.rows[:, None, None].expand(-1, num_kv_heads, group)
    peak = scores.new_full((num_rows, num_kv_heads, group), float("-inf"))
    peak.scatter_reduce_(0, index, scores.amax(-1), "amax")
    weights = scores.sub_(peak[plan.rows].unsqueeze(-1)).exp_()
    total = torch.zeros_like(peak).index_add_(0, plan.rows, weights.sum(-1))
    if layer.sinks is not None:
        total += (layer.sinks.view(num_kv_heads, group) - peak).exp_()
    mixed = _mix_values(weights, value_cache, plan, num_rows)
    return mixed.div_(total.unsqueeze(-1)).view(num_rows, num_heads, -1).to(queries.dtype)


def _pair_scores(queries: torch.Tensor, key_cache: torch.Tensor, plan: DecodePlan) -> torch.Tensor:
    """Products of each pair's query heads [B, G, H / G, D] with its block's keys: [P, G, H / G, block_size] float32."""
    size, dim = key_cache.shape[2:]
    num_kv_heads, group = queries.shape[1:3]
    scores = torch.empty((len(plan.rows), num_kv_heads, group, size), dtype=torch.float32, device=queries.device)
    for part in plan.slices():
        keys = key_cache.index_select(0, plan.blocks[part]).view(-1, size, dim)
        pair_queries = queries.index_select(0, plan.rows[part]).view(-1, group, dim)
        products = torch.bmm(pair_queries, keys.transpose(1, 2))
        scores[part] = products.view(-1, num_kv_heads, group, size)
    return scores


def _mix_values(weights: torch.Tensor, value_cache: torch.Tensor, plan: DecodePlan, num_rows: int) -> torch.Tensor:
    """Values of each row's blocks, weighted and summed: [B, G, H / G, D] float32.

    Hidden slots may hold anything, and zero times NaN is NaN: they are cleared in the copy.
    """
    num_kv_heads, size, dim = value_cache.shape[1:]
    group = weights.shape[2]
    out = weights.new_zeros((num_rows, num_kv_heads, group, dim))
    for part in plan.slices():
        values = value_cache.index_select(0, plan.blocks[part])
        ragged = plan.hidden[part].any(1).nonzero().flatten()
        values[ragged] = values[ragged].masked_fill_(plan.hidden[part][ragged][:, None, :, None], 0)
        pair_weights = weights[part].to(values.dtype).view(-1, group, size)
        mixed = torch.bmm(pair_weights, values.view(-1, size, dim)).float()
        out.index_add_(0, plan.rows[part], mixed.view(-1, num_kv_heads, group, dim))
    return out


def _chunk(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: ChunkPlan,
    window: int | None,
    layer: AttentionLayer,
) -> torch.Tensor:
    """Attention of one sequence's N queries [N, H, D] over the L keys they see: [N, H, numbers in a value]."""
    keys, values = _gather(key_cache, plan), _gather(value_cache, plan)
    out = queries.new_empty((*queries.shape[:2], values.shape[-1]))
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        positions = plan.positions[first : first + QUERIES_AT_ONCE]
        first_key = plan.first_key if window is None else max(plan.first_key, positions.start + 1 - window)
        seen = slice(first_key - plan.first_key, positions.stop - plan.first_key)
        query_positions = torch.arange(positions.start, positions.stop, device=queries.device)[:, None]
        key_positions = torch.arange(first_key, positions.stop, device=queries.device)
        visible = key_positions <= query_positions
        if window is not None:
            visible &= key_positions > query_positions - window
        part = queries[first : first + QUERIES_AT_ONCE].transpose(0, 1)
        if layer.softcap is None and layer.sinks is None:
            mixed = F.scaled_dot_product_attention(
                part[None],
                keys[None, :, seen],
                values[None, :, seen],
                attn_mask=visible,
                scale=layer.scale,
                enable_gqa=part.shape[0] > keys.shape[0],
            )[0]
        else:
            mixed = _plain_attention(part, keys[:, seen], values[:, seen], visible, layer)
        out[first : first + QUERIES_AT_ONCE] = mixed.transpose(0, 1)
    return out


def _plain_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, layer: AttentionLayer
) -> torch.Tensor:
    """Attention of queries [H, n, D], with what torch's own does not compute: [H, n, D]."""
    num_kv_heads, num_keys, dim = keys.shape
    grouped = queries.reshape(num_kv_heads, -1, dim)
    scores = torch.bmm(grouped, keys.transpose(1, 2)).float().mul_(layer.scale)
    if layer.softcap is not None:
        scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
    scores = scores.view(-1, queries.shape[1], num_keys).masked_fill_(~visible, float("-inf"))
    if layer.sinks is not None:
        scores = torch.cat([scores, layer.sinks[:, None, None].expand(-1, scores.shape[1], 1)], -1)
    weights = torch.softmax(scores, -1)[..., :num_keys].to(values.dtype)
    return torch.bmm(weights.reshape(num_kv_heads, -1, num_keys), values).view(queries.shape)


def _gather(cache: torch.Tensor, plan: ChunkPlan) -> torch.Tensor:
    """The sequence\'s keys or values, [G, L, D]."""
    num_kv_heads, size, dim = cache.shape[1:]
    blocks = cache.view(-1, size, dim).index_select(0, plan.block_heads)
    offset = plan.first_key % BLOCK_SIZE
    return blocks.view(num_kv_heads, -1, dim)[:, offset : offset + plan.num_keys]
