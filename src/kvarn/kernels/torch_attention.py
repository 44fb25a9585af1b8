"""Paged attention in torch: gathers only the blocks in use, accumulates in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvarn.kernels.attention_plan import ChunkPlan, DecodePlan


def attend_decode(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: DecodePlan,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention of B single queries [B, H, D] over their blocks: [B, H, D].

    Each (row, block) pair is multiplied on its own; a softmax over the segments of one row joins them. Sums run over a
    row's own pairs in order, so that no row depends on its neighbours.
    """
    num_rows, num_heads, dim = queries.shape
    num_kv_heads = key_cache.shape[1]
    group = num_heads // num_kv_heads
    grouped = queries.view(num_rows, num_kv_heads, group, dim)[plan.rows]
    keys = key_cache.index_select(0, plan.blocks)
    scores = torch.matmul(grouped, keys.transpose(2, 3)).float().mul_(scale)
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    scores.masked_fill_(plan.hidden[:, None, None, :], float("-inf"))

    index = plan.rows[:, None, None].expand(-1, num_kv_heads, group)
    peak = scores.new_full((num_rows, num_kv_heads, group), float("-inf"))
    peak.scatter_reduce_(0, index, scores.amax(-1), "amax")
    weights = scores.sub_(peak[plan.rows].unsqueeze(-1)).exp_()
    total = torch.zeros_like(peak).index_add_(0, plan.rows, weights.sum(-1))

    values = value_cache.index_select(0, plan.blocks)
    hidden = plan.hidden[plan.ragged][:, None, :, None]
    values[plan.ragged] = values[plan.ragged].masked_fill_(hidden, 0)
    mixed = torch.matmul(weights.to(values.dtype), values).float()
    out = mixed.new_zeros(num_rows, num_kv_heads, group, dim).index_add_(0, plan.rows, mixed)
    return out.div_(total.unsqueeze(-1)).view(num_rows, num_heads, dim).to(queries.dtype)


def attend_chunk(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: ChunkPlan,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention of one sequence's N queries [N, H, D] over its L visible keys: [N, H, D]."""
    keys = _gather(key_cache, plan)
    values = _gather(value_cache, plan)
    num_kv_heads, group = keys.shape[0], queries.shape[1] // keys.shape[0]
    grouped = queries.transpose(0, 1)
    if softcap is None:
        out = F.scaled_dot_product_attention(
            grouped[None], keys[None], values[None], attn_mask=plan.visible, scale=scale, enable_gqa=group > 1
        )[0]
        return out.transpose(0, 1)
    grouped = grouped.reshape(num_kv_heads, -1, queries.shape[-1])
    scores = torch.matmul(grouped, keys.transpose(1, 2)).float().mul_(scale / softcap).tanh_().mul_(softcap)
    scores = scores.view(num_kv_heads, group, -1, plan.num_keys).masked_fill_(~plan.visible, float("-inf"))
    weights = torch.softmax(scores, -1).to(values.dtype)
    out = torch.matmul(weights.view(num_kv_heads, -1, plan.num_keys), values)
    return out.view(queries.shape[1], -1, queries.shape[-1]).transpose(0, 1)


def _gather(cache: torch.Tensor, plan: ChunkPlan) -> torch.Tensor:
    """The sequence's keys or values, [G, L, D]."""
    num_kv_heads, size, dim = cache.shape[1:]
    blocks = cache.view(-1, size, dim).index_select(0, plan.block_heads)
    return blocks.view(num_kv_heads, -1, dim)[:, plan.offset : plan.offset + plan.num_keys]
