"""Attention over a prompt whose tokens several ranks compute: a layer writes its keys and values, ranks give each other
the blocks that they have written, then each rank's queries read them all.

Every query is answered by one rank over all of its keys, in the order of the kernels: the bits are those of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.attention import AttentionLayer, AttentionMetadata, LatentMetadata
from kvarn.kernels.batch import BlockExchange, HeadShape, PagedBatch, Rotation
from kvarn.kernels.operations import Operations
from kvarn.kernels.torch.attention import write_rows


@dataclass(frozen=True, slots=True)
class SharedAttentionMetadata:
    write: AttentionMetadata
    """Each query sees itself alone, which needs no other rank's keys."""
    attend: AttentionMetadata
    exchange: BlockExchange

    def run(
        self, qkv: torch.Tensor, rotation: Rotation, layer: AttentionLayer, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Write, exchange, attend. Keys and values are written twice, to the same bits."""
        self.write.run(qkv, rotation, layer, keys, values)
        self.exchange.share(keys, values)
        return self.attend.run(qkv, rotation, layer, keys, values)


@dataclass(frozen=True, slots=True)
class SharedLatentMetadata:
    slot_mapping: torch.Tensor
    attend: LatentMetadata
    exchange: BlockExchange

    def run(
        self, queries: torch.Tensor, rows: torch.Tensor, cache: torch.Tensor, value_size: int, scale: float
    ) -> torch.Tensor:
        """Write, exchange, attend. Rows are written twice, to the same bits."""
        write_rows(rows, cache, self.slot_mapping)
        self.exchange.share(cache)
        return self.attend.run(queries, rows, cache, value_size, scale)


def plan_attention(
    operations: Operations, batch: PagedBatch, heads: HeadShape, window: int | None
) -> AttentionMetadata:
    attend = operations.plan_attention(batch, heads, window)
    if batch.exchange is None:
        return attend
    return SharedAttentionMetadata(operations.plan_attention(batch, heads, window=1), attend, batch.exchange)


def plan_latent(operations: Operations, batch: PagedBatch, num_heads: int, size: int) -> LatentMetadata:
    attend = operations.plan_latent(batch, num_heads, size)
    return attend if batch.exchange is None else SharedLatentMetadata(batch.slot_mapping, attend, batch.exchange)
