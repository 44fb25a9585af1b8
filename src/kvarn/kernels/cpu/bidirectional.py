"""Attention of whole texts without a mask, for encoders: the kernels of the paged cache over a cache of one call."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.attention import CpuAttentionPlan, attention, plan_attention
from kvarn.kernels.cpu.kv_cache import BLOCK, new_kv_cache


@dataclass(frozen=True, slots=True)
class BidirectionalPlan:
    """The texts of one pass, for all layers; each layer writes the keys and values anew."""

    attention: CpuAttentionPlan
    keys: torch.Tensor
    values: torch.Tensor
    rotation: Rotation
    """Of no numbers: encoders' positions are in their embeddings."""


def plan_bidirectional(lengths: torch.Tensor, heads: HeadShape) -> BidirectionalPlan:
    """See `Kernels.plan_bidirectional`. Raises KvShapeError where the kernels cannot read such heads."""
    tokens = int(lengths.sum())
    blocks = (lengths + BLOCK - 1) // BLOCK
    first_block = blocks.cumsum(0) - blocks
    ends = lengths.cumsum(0)
    text = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    positions = torch.arange(tokens) - (ends - lengths)[text]
    batch = PagedBatch(
        positions=positions,
        query_starts=torch.cat([torch.zeros(1, dtype=torch.int64), ends]).int(),
        context_lens=lengths.int(),
        block_tables=(first_block[:, None] + torch.arange(int(blocks.max()))).int(),
        slot_mapping=first_block[text] * BLOCK + positions,
    )
    cache = new_kv_cache(1, int(blocks.sum()), heads, "float32")
    nothing = torch.empty((tokens, 0))
    return BidirectionalPlan(
        plan_attention(batch, causal=False), cache.keys[0], cache.values[0], Rotation(nothing, nothing)
    )


def bidirectional_attention(
    backend: _native.Backend, qkv: torch.Tensor, heads: HeadShape, plan: BidirectionalPlan
) -> torch.Tensor:
    """See `Kernels.bidirectional_attention`. A text's result depends on its own tokens alone, to the last bit."""
    scale = heads.dim**-0.5
    return attention(backend, qkv, heads, plan.rotation, None, plan.keys, plan.values, plan.attention, scale)
