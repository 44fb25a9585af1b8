"""Attention over latent rows in the compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvarn.kernels.batch import HeadShape, PagedBatch
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.attention import CpuAttentionPlan, plan_attention
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.torch.latent import write_rows

MAX_SIZE = 1024
"""Numbers of a row."""


@dataclass(frozen=True, slots=True)
class CpuLatentPlan:
    """See `kvarn.kernels.operations.LatentPlan`."""

    attention: CpuAttentionPlan
    """Of which only the step's shape is used."""

    @staticmethod
    def of(backend: _native.Backend, batch: PagedBatch, num_heads: int, size: int) -> CpuLatentPlan:
        """The plan of one step. Raises KernelInputError where the batch does not fit together, or rows are too long."""
        if size > MAX_SIZE:
            raise KernelInputError(f"latent rows of {size} numbers: the kernels read up to {MAX_SIZE}")
        return CpuLatentPlan(plan_attention(backend, batch, HeadShape(num_heads, 1, size)))

    def run(
        self, queries: torch.Tensor, rows: torch.Tensor, cache: torch.Tensor, value_size: int, scale: float
    ) -> torch.Tensor:
        """One compiled call after the rows are written. A token's result depends on its own sequence alone, to the
        last bit."""
        plan, batch = self.attention, self.attention.batch
        tokens, heads, size = len(batch.slot_mapping), plan.heads.query, plan.heads.dim
        if queries.dtype != torch.float32 or queries.shape != (tokens, heads, size) or not queries.is_contiguous():
            raise KernelInputError(f"queries must be float32 {(tokens, heads, size)}, not {tuple(queries.shape)}")
        if cache.shape[-1] != size or not cache.is_contiguous() or not 0 < value_size <= size:
            raise KernelInputError(f"a cache {tuple(cache.shape)} does not hold rows of {size} numbers")
        if plan.native.num_blocks > len(cache):
            raise KernelInputError(
                f"the step uses block {plan.native.num_blocks - 1} of a cache of {len(cache)} blocks"
            )
        write_rows(rows, cache, batch.slot_mapping)
        out = torch.empty((tokens, heads, value_size), dtype=torch.float32)
        plan.backend.latent_attention(
            plan.native,
            heads,
            size,
            value_size,
            queries.data_ptr(),
            cache.data_ptr(),
            cache.dtype == torch.bfloat16,
            scale,
            out.data_ptr(),
        )
        return out
