"""Segments of attention that are computed by programs of their own, and joined afterwards: see `jit.attention`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kvarn.config.schema import BLOCK_SIZE
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.triton.jit import attention

SEGMENT = 256
"""As in `jit.attention`."""
PARTS_BYTES = 256 * 1024 * 1024
"""Segments' sums take so much memory at most; where they would take more, each program joins its own."""
WIDE = 256
"""Numbers of a value from which on a head is joined by four warps."""


def num_segments(batch: PagedBatch) -> int:
    """Segments of the longest sequence that the block tables have room for."""
    return -(-batch.block_tables.shape[1] * BLOCK_SIZE // SEGMENT)


@dataclass(frozen=True, slots=True)
class Segments:
    """What programs leave for `jit.attention.join`."""

    parts: torch.Tensor
    """[T, heads, segments, size] float32."""
    stats: torch.Tensor
    """[T, heads, segments, 2] float32."""

    @staticmethod
    def fitting(batch: PagedBatch, heads: int, size: int) -> int:
        """Tokens of a step for which there is memory. `size`: numbers of a value."""
        return PARTS_BYTES // (heads * num_segments(batch) * size * 4)

    @staticmethod
    def room(batch: PagedBatch, tokens: int, heads: int, size: int) -> Segments:
        """Memory for those of so many tokens."""
        shape, device = (tokens, heads, num_segments(batch)), batch.slot_mapping.device
        parts, stats = (torch.empty((*shape, width), dtype=torch.float32, device=device) for width in (size, 2))
        return Segments(parts, stats)

    @staticmethod
    def none(device: torch.device) -> Segments:
        """Where none are computed apart."""
        empty = torch.empty(0, dtype=torch.float32, device=device)
        return Segments(empty, empty)

    def join(
        self, batch: PagedBatch, out: torch.Tensor, sinks: torch.Tensor | None = None, window: int = 0, first: int = 0
    ) -> None:
        """Into rows of out [T, heads * size], from the token `first` on."""
        tokens, heads, segments, size = self.parts.shape
        attention.join[(tokens, heads)](
            self.parts,
            self.stats,
            batch.positions[first:],
            batch.slot_mapping[first:],
            sinks,
            out[first:],
            segments,
            QUERY_HEADS=heads,
            DIM=size,
            WINDOW=window,
            HAS_SINKS=sinks is not None,
            BLOCK=max(16, triton.next_power_of_2(size)),
            num_warps=4 if size >= WIDE else 1,
        )
