"""Attention over latent rows in the compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.batch import HeadShape, PagedBatch
from kvarn.kernels.checks import check_latent_rows
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.attention import CpuAttentionMetadata, plan_attention
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.torch.attention import write_rows

MAX_SIZE = 1024
"""Numbers of a row."""


@dataclass(frozen=True, slots=True)
class CpuLatentMetadata:
    attention: CpuAttentionMetadata
    """Only the step's shape is used."""

    @staticmethod
    def of(backend: _native.Backend, batch: PagedBatch, num_heads: int, size: int) -> CpuLatentMetadata:
        """The plan of one step. Raises KernelInputError where the batch does not fit together, or rows are too long."""
        if size > MAX_SIZE:
            raise KernelInputError(f"latent rows of {size} numbers: the kernels read up to {MAX_SIZE}")
        return CpuLatentMetadata(plan_attention(backend, batch, HeadShape(num_heads, 1, size)))

    def run(
        self, queries: torch.Tensor, rows: torch.Tensor, cache: torch.Tensor, value_size: int, scale: float
    ) -> torch.Tensor:
        """One compiled call after the rows are written. A token's result depends on its own sequence alone, to the
        last bit."""
        plan, batch = self.attention, self.attention.batch
        tokens, heads, size = len(batch.slot_mapping), plan.heads.query, plan.heads.dim
        check_latent_rows(queries, cache, (tokens, heads, size), value_size, MAX_SIZE)
        if queries.dtype != torch.float32 or not cache.is_contiguous():
            raise KernelInputError(f"queries must be float32, not {queries.dtype}, and the cache contiguous")
        if plan.native.num_blocks > len(cache):
            raise KernelInputError(
                f"the step uses block {plan.native.num_blocks - 1} of a cache of {len(cache)} blocks"
            )
        write_rows(rows, cache, batch.slot_mapping)
        out = torch.empty((tokens, heads, value_size), dtype=torch.float32)
        plan.backend.latent_attention(
            plan.native,
            heads=heads,
            size=size,
            value_size=value_size,
            queries=queries.data_ptr(),
            cache=cache.data_ptr(),
            rounded=cache.dtype == torch.bfloat16,
            scale=scale,
            out=out.data_ptr(),
        )
        return out
