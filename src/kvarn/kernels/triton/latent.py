"""Attention over latent rows, and products by head, by the Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton

from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.checks import check_latent_rows, check_rows
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.triton.attention import ROWS
from kvarn.kernels.triton.device_weight import DeviceWeight
from kvarn.kernels.triton.jit import latent
from kvarn.kernels.triton.launch import TRITON_TYPES, multiplied_type
from kvarn.kernels.triton.linear import launch_product
from kvarn.kernels.triton.segments import SplitPlan, num_parts
from kvarn.kernels.triton.tiles import SPLIT_STEP, tile_of

KEYS = 32
"""Rows that are multiplied at a time."""
COLUMNS = 64
"""Numbers of a value whose sums are joined at a time."""
MAX_VALUE = 512
"""Numbers of a value: more do not fit into the registers."""


@dataclass(frozen=True, slots=True)
class TritonLatentMetadata:
    """See `kvarn.kernels.attention.LatentMetadata`. Nothing waits for the device."""

    batch: PagedBatch
    num_heads: int
    size: int
    split_plans: tuple[tuple[int, int, SplitPlan], ...]
    """Tokens that are computed at once (first, end), and the division of their segments among programs."""

    def run(
        self, queries: torch.Tensor, rows: torch.Tensor, cache: torch.Tensor, value_size: int, scale: float
    ) -> torch.Tensor:
        """Three kernels; the last two for as many tokens at a time as there is memory for. Raises KernelInputError
        where tensors do not fit together."""
        batch, heads, size = self.batch, self.num_heads, self.size
        tokens = len(batch.slot_mapping)
        check_rows(rows, (tokens, size), rows.dtype)
        check_latent_rows(queries, cache, (tokens, heads, size), value_size, MAX_VALUE)
        out = queries.new_empty((tokens, heads, value_size))
        if not tokens:
            return out
        latent.write[(tokens,)](
            rows, batch.slot_mapping, cache, STRIDE=rows.stride(0), SIZE=size, BLOCK=triton.next_power_of_2(size)
        )
        for first, end, splits in self.split_plans:
            parts, stats = splits.memory(heads, value_size, more=2 * (end - first))
            self._attend(queries, cache, out, splits, parts, stats, scale, first, end - first)
            splits.join(parts, stats, out, group=heads)
        return out

    def _attend(
        self,
        queries: torch.Tensor,
        cache: torch.Tensor,
        out: torch.Tensor,
        splits: SplitPlan,
        parts: torch.Tensor,
        stats: torch.Tensor,
        scale: float,
        first: int,
        num_tokens: int,
    ) -> None:
        batch, heads, value_size = splits.batch, self.num_heads, parts.shape[2]
        together = min(heads, ROWS)
        latent.attend[(splits.launched * triton.cdiv(heads, together),)](
            queries,
            cache,
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            splits.programs,
            splits.partials,
            out,
            parts,
            stats,
            scale,
            len(batch.context_lens),
            batch.block_tables.stride(0),
            first,
            num_tokens,
            splits.room,
            HEADS=heads,
            HEADS_TOGETHER=together,
            SIZE=self.size,
            VALUE=value_size,
            NUMBERS=TRITON_TYPES[cache.dtype],
            DOT=multiplied_type(cache.dtype),
            ROWS=ROWS,
            KEYS=KEYS,
            VALUE_BLOCK=max(16, triton.next_power_of_2(value_size)),
            REST_BLOCK=max(16, triton.next_power_of_2(self.size - value_size)),
            COLUMNS=min(COLUMNS, max(16, triton.next_power_of_2(value_size))),
            num_warps=8,
            num_stages=2,
        )


def plan_latent(batch: PagedBatch, num_heads: int, size: int) -> TritonLatentMetadata:
    """The plan of one step: for so many tokens at a time that what they join takes half of the memory for sums."""
    together, bytes_each = min(num_heads, ROWS), num_heads * min(size, MAX_VALUE) * 4
    tokens, chunk = len(batch.slot_mapping), max(1, num_parts(bytes_each) // 4)
    split_plans = []
    for first in range(0, tokens, chunk):
        end = min(tokens, first + chunk)
        part = batch if chunk >= tokens else _tokens_of(batch, first, end)
        groups = triton.cdiv(num_heads, together)
        splits = SplitPlan.of(part, ROWS // together, groups, bytes_each, reserved=2 * (end - first))
        split_plans.append((first, end, splits))
    return TritonLatentMetadata(batch, num_heads, size, tuple(split_plans))


def _tokens_of(batch: PagedBatch, first: int, end: int) -> PagedBatch:
    """The sequences with those of their queries that are among these tokens, which keep their numbers."""
    starts = batch.query_starts.clamp(first, end)
    left_out = (batch.query_starts - starts)[1:].clamp(min=0)
    return replace(
        batch,
        query_starts=starts,
        context_lens=batch.context_lens - left_out,
        positions=batch.positions[first:end],
        slot_mapping=batch.slot_mapping[first:end],
    )


class TritonHeadProducts:
    """See `kvarn.kernels.linear.HeadProducts`: `linear.multiply` for each head, in one launch."""

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: plain, [H, out, in]."""
        self._weight = weight.contiguous()
        self._held = DeviceWeight(self._weight, weight.shape[2], weight.shape[1])
        self.nbytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """One chain of products for each output. Raises KernelInputError where x does not fit."""
        heads, outputs, inputs = self._weight.shape
        if x.shape[1:] != (heads, inputs) or x.stride(2) != 1:
            raise KernelInputError(f"x must be [T, {heads}, {inputs}], numbers side by side, not {tuple(x.shape)}")
        out = x.new_empty((len(x), heads, outputs))
        if not len(x):
            return out
        tile = tile_of(len(x), gated=False, quantized=False)
        grid = triton.cdiv(outputs, tile.outs) * triton.cdiv(len(x), tile.rows), 1, heads
        launch_product(
            grid, x, self._held, out, tile, inputs=inputs, split=triton.cdiv(inputs, SPLIT_STEP) * SPLIT_STEP,
            head_stride=x.stride(1),
        )  # fmt: skip
        return out
