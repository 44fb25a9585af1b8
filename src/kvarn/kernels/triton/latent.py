"""Attention over latent rows, and products by head, by the Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.triton.attention import ROWS
from kvarn.kernels.triton.jit import latent, linear
from kvarn.kernels.triton.linear import SPLIT_STEP, check_rows, tile_of
from kvarn.kernels.triton.numbers import TRITON_TYPES, multiplied_type
from kvarn.kernels.triton.segments import Segments, num_segments

KEYS = 32
"""Rows that are multiplied at a time."""
MAX_VALUE = 512
"""Numbers of a value: more do not fit into the registers."""


@dataclass(frozen=True, slots=True)
class TritonLatentPlan:
    """See `kvarn.kernels.backend.LatentPlan`. Nothing waits for the device."""

    batch: PagedBatch
    num_heads: int
    size: int

    def run(
        self, queries: torch.Tensor, rows: torch.Tensor, cache: torch.Tensor, value_size: int, scale: float
    ) -> torch.Tensor:
        """Three kernels; the last two for as many tokens at a time as there is memory for. Raises KernelInputError
        where tensors do not fit together."""
        batch, heads, size = self.batch, self.num_heads, self.size
        tokens = len(batch.slot_mapping)
        check_rows(rows, (tokens, size), rows.dtype)
        if queries.shape != (tokens, heads, size) or not queries.is_contiguous():
            raise KernelInputError(f"queries must be {(tokens, heads, size)} side by side, not {tuple(queries.shape)}")
        if cache.shape[-1] != size or not 0 < value_size <= min(size, MAX_VALUE):
            raise KernelInputError(
                f"a cache {tuple(cache.shape)} does not hold rows of {size} numbers with values of {value_size}, "
                f"{MAX_VALUE} at most"
            )
        out = queries.new_empty((tokens, heads, value_size))
        if not tokens:
            return out
        latent.write[(tokens,)](
            rows, batch.slot_mapping, cache, STRIDE=rows.stride(0), SIZE=size, BLOCK=triton.next_power_of_2(size)
        )
        for first in range(0, tokens, chunk := max(1, Segments.fitting(batch, heads, value_size))):
            end = min(tokens, first + chunk)
            segments = Segments.room(batch, end - first, heads, value_size)
            self._attend(queries, cache, segments, scale, first, end)
            segments.join(batch, out, first=first)
        return out

    def _attend(
        self, queries: torch.Tensor, cache: torch.Tensor, segments: Segments, scale: float, first: int, end: int
    ) -> None:
        """Tokens `first` to `end`."""
        batch, heads = self.batch, self.num_heads
        together = min(heads, ROWS)
        in_tile, sequences, value_size = ROWS // together, len(batch.context_lens), segments.parts.shape[3]
        first_tile = max(0, first // in_tile - 1)
        tiles = (end - 1) // in_tile + sequences - first_tile
        latent.attend[(tiles, triton.cdiv(heads, together), num_segments(batch))](
            queries,
            cache,
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            segments.parts,
            segments.stats,
            scale,
            sequences,
            batch.block_tables.stride(0),
            num_segments(batch),
            first_tile,
            first,
            end,
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
            num_warps=8,
            num_stages=2,
        )


class TritonHeadProducts:
    """See `kvarn.kernels.backend.HeadProducts`: `linear.multiply` for each head, in one launch."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Of a plain weight [H, out, in]."""
        self._weight = weight.contiguous()
        self.nbytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """One chain of products for each output. Raises KernelInputError where x does not fit."""
        heads, outputs, inputs = self._weight.shape
        if x.shape[1:] != (heads, inputs) or x.stride(2) != 1:
            raise KernelInputError(f"x must be [T, {heads}, {inputs}], numbers side by side, not {tuple(x.shape)}")
        out = x.new_empty((len(x), heads, outputs))
        if not len(x):
            return out
        tile = tile_of(len(x), gated=False, group=0)
        linear.multiply[(triton.cdiv(outputs, tile.outs) * triton.cdiv(len(x), tile.rows), 1, heads)](
            x,
            self._weight,
            *(None,) * 6,
            out,
            None,
            None,
            len(x),
            0.0,
            X_STRIDE=x.stride(0),
            OUT_STRIDE=out.stride(0),
            INPUTS=inputs,
            WIDTH=inputs,
            OUTPUTS=outputs,
            SPLIT=triton.cdiv(inputs, SPLIT_STEP) * SPLIT_STEP,
            SPLITS=1,
            APART=False,
            FORMAT="plain",
            GROUP=0,
            HAS_ZEROS=False,
            HAS_MULTIPLIERS=False,
            HAS_NORM=False,
            HAS_BIAS=False,
            ADDS=False,
            ACTIVATION="",
            HEAD_STRIDE=x.stride(1),
            NUMBERS=TRITON_TYPES[x.dtype],
            DOT=multiplied_type(x.dtype),
            ROWS=tile.rows,
            OUTS=tile.outs,
            STEP=tile.step,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return out
