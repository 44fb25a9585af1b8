"""Prefill context parallelism: ranks that each hold the whole model compute different tokens of a long prompt.

Each takes its tokens through all layers. In each layer ranks give each other the blocks of the KV cache that they have
written (`models/attention/context_parallel.py`), so all have the whole cache, as if each had computed the prompt. What
is not a long prompt (decode rows, short prompts, rows with proposals) is computed by every rank; nothing is sent.

A query sees all keys before it, so later tokens take longer. A prompt's chunk is cut into two pieces for each of n
ranks, and rank i takes pieces i and 2 n - 1 - i: all have as many tokens and as much attention to compute (Llama Team,
"The Llama 3 herd of models", 2024). Pieces end where blocks do, so each block is written by one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from kvarn.engine.plan import Row
from kvarn.shapes import BLOCK_SIZE

if TYPE_CHECKING:
    from kvarn.worker.step_batch import StepBatch

PIECE_BLOCKS = 2
"""Fewest blocks of a piece: the compiled kernels multiply as many tokens together. Shorter prompts are not cut."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedBlocks:
    rank: int
    blocks: Sequence[torch.Tensor]
    """Blocks that each rank writes, [N] int64; padded to the same N with the last one."""
    all_gather: Callable[[torch.Tensor], list[torch.Tensor]]

    def share(self, *caches: torch.Tensor) -> None:
        parts = [cache.view(len(cache), -1).view(torch.uint8) for cache in caches]
        sizes = [part.shape[1] for part in parts]
        own = self.blocks[self.rank]
        gathered = self.all_gather(torch.cat([part.index_select(0, own) for part in parts], dim=1))
        for rank, (blocks, contents) in enumerate(zip(self.blocks, gathered, strict=True)):
            if rank != self.rank:
                for part, columns in zip(parts, torch.split(contents, sizes, dim=1), strict=True):
                    part.index_copy_(0, blocks, columns)


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """One rank's place among those that share long prompts: rank 0 has each prompt's last token. `all_gather` gives
    the tensors of all of them, of one shape and type, in their order."""

    rank: int
    size: int
    all_gather: Callable[[torch.Tensor], list[torch.Tensor]]

    def divide(self, rows: Sequence[Row], batch: StepBatch, device: torch.device) -> StepBatch:
        """The part of a step that this rank computes: pieces of long prompts, and all other rows."""
        if len(batch.token_ids) < 2 * self.size * PIECE_BLOCKS * BLOCK_SIZE:
            return batch
        spans: list[tuple[int, int, int]] = []  # row, and its first and one past its last token of the step
        written: list[list[npt.NDArray[np.int32]]] = [[] for _ in range(self.size)]
        row_ends = []
        num_tokens = 0
        for index, (row, start) in enumerate(zip(rows, batch.query_starts.tolist(), strict=False)):
            bounds = self._bounds(row)
            if bounds is None:
                own = [(index, start, start + len(row.token_ids))]
            else:
                first = start - row.start
                own = [(index, first + bounds[i], first + bounds[i + 1]) for i in self._pieces(self.rank)]
                for rank, blocks in enumerate(written):
                    for i in self._pieces(rank):
                        last = (bounds[i + 1] - 1) // BLOCK_SIZE
                        blocks.append(batch.block_tables[index, bounds[i] // BLOCK_SIZE : last + 1])
            spans += own
            num_tokens += sum(end - begin for _, begin, end in own)
            row_ends.append(num_tokens)
        if not written[0]:
            return batch
        return self._part(batch, spans, np.array(row_ends), self._shared(written, device))

    def _pieces(self, rank: int) -> tuple[int, int]:
        return rank, 2 * self.size - 1 - rank

    def _bounds(self, row: Row) -> list[int] | None:
        """Positions at which a row is cut into pieces, its start and end among them; None where it is not cut: rank
        0 needs all logits of a row that reports on its prompt, and of proposals."""
        if row.num_proposals or row.prompt_logprobs:
            return None
        end = row.start + len(row.token_ids)
        first, last = row.start // BLOCK_SIZE, -(-end // BLOCK_SIZE)
        pieces = 2 * self.size
        if last - first < pieces * PIECE_BLOCKS:
            return None
        bounds = [(first + (last - first) * piece // pieces) * BLOCK_SIZE for piece in range(pieces + 1)]
        return [row.start, *bounds[1:-1], end]

    def _shared(self, written: list[list[npt.NDArray[np.int32]]], device: torch.device) -> SharedBlocks:
        by_rank = [np.concatenate(blocks).astype(np.int64) for blocks in written]
        longest = max(map(len, by_rank))
        padded = [np.concatenate([blocks, np.repeat(blocks[-1:], longest - len(blocks))]) for blocks in by_rank]
        return SharedBlocks(self.rank, [torch.from_numpy(blocks).to(device) for blocks in padded], self.all_gather)

    def _part(
        self, batch: StepBatch, spans: Sequence[tuple[int, int, int]], row_ends: Ints, exchange: SharedBlocks
    ) -> StepBatch:
        row, first, end = np.array(spans, dtype=np.int64).T
        lengths = end - first
        query_starts = np.concatenate(([0], np.cumsum(lengths)))
        tokens = np.arange(query_starts[-1]) + np.repeat(first - query_starts[:-1], lengths)
        return replace(
            batch,
            token_ids=batch.token_ids[tokens],
            row_of_token=batch.row_of_token[tokens],
            positions=batch.positions[tokens],
            slot_mapping=batch.slot_mapping[tokens],
            query_starts=query_starts,
            context_lens=batch.positions[end - 1] + 1,
            block_tables=batch.block_tables[row],
            row_ends=row_ends,
            exchange=exchange,
        )
