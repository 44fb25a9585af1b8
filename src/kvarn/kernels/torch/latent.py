"""Attention over latent rows in torch: grouped attention with one key head, whose first numbers are the value."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import HeadShape, PagedBatch
from kvarn.kernels.torch.attention import TorchAttentionMetadata, plan_attention, write_rows


@dataclass(frozen=True, slots=True)
class TorchLatentMetadata:
    attention: TorchAttentionMetadata

    @staticmethod
    def of(batch: PagedBatch, num_heads: int, size: int) -> TorchLatentMetadata:
        return TorchLatentMetadata(plan_attention(batch, HeadShape(num_heads, 1, size)))

    def run(
        self, queries: torch.Tensor, rows: torch.Tensor, cache: torch.Tensor, value_size: int, scale: float
    ) -> torch.Tensor:
        write_rows(rows, cache, self.attention.slots)
        return self.attention.attend(queries, cache, cache[..., :value_size], AttentionLayer(scale))
