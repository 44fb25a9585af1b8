"""The division of attention's segments among programs, and their joining: see `jit.segments`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.triton.jit import segments as jit
from kvarn.kernels.triton.launch import launch_options
from kvarn.shapes import BLOCK_SIZE

SEGMENT = 256
"""Tokens of a segment, as in `jit.segments`."""
PARTS_BYTES = 256 * 1024 * 1024
"""Segments' sums take so much memory at most; sequences whose sums find no room there are not divided."""
PROGRAMS = 528
"""Programs that fill a large GPU: with fewer tiles each segment is computed by a program of its own."""
MIN_SEGMENTS = 8
"""Segments that a program computes at least where there are tiles enough."""
COUNTED = 512
"""Sequences that are counted at a time."""
JOINING = 4096
"""Programs that join."""
AHEAD = 8
"""Segments whose sums a joining program reads at a time."""
WIDE = 256
"""Numbers of a value from which on a head is joined by four warps."""


def num_segments(batch: PagedBatch, window: int = 0) -> int:
    """Segments that a sequence's queries may see, as far as the host knows."""
    widest = -(-batch.block_tables.shape[1] * BLOCK_SIZE // SEGMENT)
    return min(widest, (window + len(batch.slot_mapping)) // SEGMENT + 2) if window else widest


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The division of a step's tiles among programs, as `jit.segments.plan_splits` has written it."""

    batch: PagedBatch
    programs: torch.Tensor
    partials: torch.Tensor
    tokens: torch.Tensor
    launched: int
    """Programs of a launch, for each group of heads."""
    room: int
    """Segments of tokens whose sums there is memory for."""
    window: int

    @staticmethod
    def of(
        batch: PagedBatch, together: int, groups: int, bytes_each: int, *, window: int = 0, always: bool = False,
        reserved: int = 0,
    ) -> SplitPlan:  # fmt: skip
        """Count on the device.

        Args:
            batch: The step.
            together: Queries of a tile.
            groups: Groups of heads, each of which computes every tile.
            bytes_each: Of a token's sums of one segment.
            window: Tokens that a query sees; 0: all.
            always: All sequences leave sums; there must be room for those of all.
            reserved: So many partials of the memory for sums are for something else.
        """
        sequences, max_segments = len(batch.context_lens), num_segments(batch, window)
        tiles = len(batch.slot_mapping) // together + sequences
        extra = max(1, PROGRAMS // groups)
        room = max(0, min(num_parts(bytes_each) - reserved, len(batch.slot_mapping) * max_segments))
        # At multiples of 16 bytes, whatever S is: for other addresses kernels would be compiled again.
        memory = batch.context_lens.new_empty((3, triton.cdiv(sequences + 1, 4) * 4))
        programs, partials, tokens = memory[:, : sequences + 1]
        jit.plan_splits[(1,)](
            batch.query_starts,
            batch.context_lens,
            programs,
            partials,
            tokens,
            sequences,
            extra,
            split_length(tiles * groups),
            room,
            TOGETHER=together,
            WINDOW=window,
            ALWAYS=always,
            BLOCK=COUNTED,
        )
        return SplitPlan(
            batch, programs, partials, tokens, min(tiles + extra, tiles * max(1, max_segments)), room, window
        )

    def memory(self, heads: int, size: int, more: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for sums [partials, heads, size] and statistics [partials, heads, 2], float32, with `more` partials
        behind them."""
        shape, device = (self.room + more, heads), self.programs.device
        parts, stats = (torch.empty((*shape, width), dtype=torch.float32, device=device) for width in (size, 2))
        return parts, stats

    def join(
        self,
        parts: torch.Tensor,
        stats: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
        *,
        group: int,
    ) -> None:
        """Into those rows of out [T, heads * size] that several programs computed. `group`: heads that are computed
        together."""
        _, heads, size = parts.shape
        jit.join[(min(len(self.batch.slot_mapping), max(1, JOINING // heads)), heads)](
            parts,
            stats,
            self.batch.query_starts,
            self.batch.context_lens,
            self.partials,
            self.tokens,
            sinks,
            out,
            len(self.batch.context_lens),
            HEADS=heads,
            GROUP=group,
            DIM=size,
            WINDOW=self.window,
            HAS_SINKS=sinks is not None,
            AHEAD=AHEAD,
            BLOCK=max(16, triton.next_power_of_2(size)),
            num_warps=4 if size >= WIDE else 1,
            **launch_options(len(self.batch.slot_mapping)),
        )


def num_parts(bytes_each: int) -> int:
    """Sums of so many bytes for which there is memory."""
    return PARTS_BYTES // bytes_each


def split_length(tiles: int) -> int:
    """Segments that a program computes at least, with so many tiles."""
    return 1 if tiles < PROGRAMS else MIN_SEGMENTS
