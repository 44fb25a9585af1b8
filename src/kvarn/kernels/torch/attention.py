"""Paged attention in torch: gathers only the blocks in use, a piece at a time, and accumulates in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.linear import Norm
from kvarn.kernels.torch.attention_plan import ChunkPlan, DecodePlan, QueryTile, StepBlocks, plan_step
from kvarn.kernels.torch.linear import rms_norm


@dataclass(frozen=True, slots=True)
class TorchAttentionPlan:
    """See `kvarn.kernels.interface.AttentionPlan`."""

    heads: HeadShape
    blocks: StepBlocks

    @staticmethod
    def of(batch: PagedBatch, heads: HeadShape, window: int | None = None) -> TorchAttentionPlan:
        """The plan of one step."""
        return TorchAttentionPlan(heads, plan_step(batch, heads.kv, window))

    def run(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        norm: Norm | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Norm, rotation, writing and attention one after the other."""
        queries, kv, dim = self.heads
        query_key = qkv[:, : (queries + kv) * dim].view(-1, queries + kv, dim)
        if norm is not None:
            query_key = rms_norm(query_key, norm)
        query_key = rotate(query_key, rotation)
        values = qkv[:, (queries + kv) * dim :].view(-1, kv, dim)
        write_kv(query_key[:, queries:], values, key_cache, value_cache, self.blocks)
        return paged_attention(query_key[:, :queries], key_cache, value_cache, self.blocks, scale, softcap).flatten(1)


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x [T, heads, D] turned; the first half of the turned part is paired with the second (the Hugging Face layout).

    Computed in float32.
    """
    half = rotation.cos.shape[-1]
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]
    x1, x2 = x[..., :half], x[..., half : 2 * half]
    out = torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1).to(x.dtype)
    return out if 2 * half == x.shape[-1] else torch.cat([out, x[..., 2 * half :]], -1)


def write_kv(
    keys: torch.Tensor, values: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, plan: StepBlocks
) -> None:
    """Put keys and values [T, G, D] of this step into their slots: a row copy per token and head, nothing else."""
    slots = plan.slots.flatten()
    dim = key_cache.shape[-1]
    key_cache.view(-1, dim).index_copy_(0, slots, keys.reshape(-1, dim).to(key_cache.dtype))
    value_cache.view(-1, dim).index_copy_(0, slots, values.reshape(-1, dim).to(value_cache.dtype))


def paged_attention(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: StepBlocks,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Causal attention of queries [T, H, D] over the cached blocks of their own sequences: [T, H, D].

    Decode rows together, then each prefill chunk.
    """
    own_type = queries.to(key_cache.dtype)
    out = torch.empty_like(queries)
    if plan.decode is not None:
        decode = plan.decode
        mixed = attend_decode(own_type[decode.tokens], key_cache, value_cache, decode, scale, softcap)
        out[decode.tokens] = mixed.to(out.dtype)
    for chunk in plan.chunks:
        part = own_type[chunk.first_token : chunk.last_token]
        mixed = attend_chunk(part, key_cache, value_cache, chunk, scale, softcap)
        out[chunk.first_token : chunk.last_token] = mixed.to(out.dtype)
    return out


def attend_decode(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: DecodePlan,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention of B single queries [B, H, D] over their blocks: [B, H, D].

    Each (row, block) pair is multiplied on its own; a softmax over the pairs of one row joins them (as in
    Flash-Decoding, Dao et al. 2023). Sums run over a row's own pairs in order, so that no row depends on its
    neighbours.
    """
    num_rows, num_heads, dim = queries.shape
    num_kv_heads = key_cache.shape[1]
    group = num_heads // num_kv_heads
    scores = _pair_scores(queries.view(num_rows, num_kv_heads, group, dim), key_cache, plan).mul_(scale)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    scores.masked_fill_(plan.hidden[:, None, None, :], float("-inf"))

    index = plan.rows[:, None, None].expand(-1, num_kv_heads, group)
    peak = scores.new_full((num_rows, num_kv_heads, group), float("-inf"))
    peak.scatter_reduce_(0, index, scores.amax(-1), "amax")
    weights = scores.sub_(peak[plan.rows].unsqueeze(-1)).exp_()
    total = torch.zeros_like(peak).index_add_(0, plan.rows, weights.sum(-1))
    mixed = _mix_values(weights, value_cache, plan, num_rows)
    return mixed.div_(total.unsqueeze(-1)).view(num_rows, num_heads, dim).to(queries.dtype)


def _pair_scores(queries: torch.Tensor, key_cache: torch.Tensor, plan: DecodePlan) -> torch.Tensor:
    """Products of each pair's query heads [B, G, H / G, D] with its block's keys: [P, G, H / G, block_size] float32."""
    size, dim = key_cache.shape[2:]
    num_kv_heads, group = queries.shape[1:3]
    scores = torch.empty((len(plan.rows), num_kv_heads, group, size), dtype=torch.float32, device=queries.device)
    for part in plan.slices:
        keys = key_cache.index_select(0, plan.blocks[part.first : part.last]).view(-1, size, dim)
        pair_queries = queries.index_select(0, plan.rows[part.first : part.last]).view(-1, group, dim)
        products = torch.bmm(pair_queries, keys.transpose(1, 2))
        scores[part.first : part.last] = products.view(-1, num_kv_heads, group, size)
    return scores


def _mix_values(weights: torch.Tensor, value_cache: torch.Tensor, plan: DecodePlan, num_rows: int) -> torch.Tensor:
    """Values of each row's blocks, weighted and summed: [B, G, H / G, D] float32.

    Hidden slots may hold anything, and zero times NaN is NaN: they are cleared in the copy.
    """
    num_kv_heads, size, dim = value_cache.shape[1:]
    group = weights.shape[2]
    out = weights.new_zeros((num_rows, num_kv_heads, group, dim))
    for part in plan.slices:
        values = value_cache.index_select(0, plan.blocks[part.first : part.last])
        values[part.ragged] = values[part.ragged].masked_fill_(part.ragged_hidden, 0)
        pair_weights = weights[part.first : part.last].to(values.dtype).view(-1, group, size)
        mixed = torch.bmm(pair_weights, values.view(-1, size, dim)).float()
        out.index_add_(0, plan.rows[part.first : part.last], mixed.view(-1, num_kv_heads, group, dim))
    return out


def attend_chunk(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: ChunkPlan,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention of one sequence's N queries [N, H, D] over the L keys they see: [N, H, D]."""
    keys = _gather(key_cache, plan)
    values = _gather(value_cache, plan)
    out = torch.empty_like(queries)
    for tile in plan.tiles:
        part = queries[tile.first_query : tile.last_query].transpose(0, 1)
        tile_keys = keys[:, tile.first_key : tile.last_key]
        tile_values = values[:, tile.first_key : tile.last_key]
        if softcap is None:
            mixed = F.scaled_dot_product_attention(
                part[None],
                tile_keys[None],
                tile_values[None],
                attn_mask=tile.visible,
                scale=scale,
                enable_gqa=part.shape[0] > keys.shape[0],
            )[0]
        else:
            mixed = _capped_attention(part, tile_keys, tile_values, tile, scale, softcap)
        out[tile.first_query : tile.last_query] = mixed.transpose(0, 1)
    return out


def _capped_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: QueryTile, scale: float, softcap: float
) -> torch.Tensor:
    """Attention of queries [H, n, D] whose scores are squeezed by softcap * tanh(score / softcap): [H, n, D]."""
    num_kv_heads, num_keys, dim = keys.shape
    grouped = queries.reshape(num_kv_heads, -1, dim)
    scores = torch.bmm(grouped, keys.transpose(1, 2)).float().mul_(scale / softcap).tanh_().mul_(softcap)
    scores = scores.view(-1, queries.shape[1], num_keys).masked_fill_(~tile.visible, float("-inf"))
    weights = torch.softmax(scores, -1).to(values.dtype)
    return torch.bmm(weights.view(num_kv_heads, -1, num_keys), values).view(queries.shape)


def _gather(cache: torch.Tensor, plan: ChunkPlan) -> torch.Tensor:
    """The sequence's keys or values, [G, L, D]."""
    num_kv_heads, size, dim = cache.shape[1:]
    blocks = cache.view(-1, size, dim).index_select(0, plan.block_heads)
    return blocks.view(num_kv_heads, -1, dim)[:, plan.offset : plan.offset + plan.num_keys]
