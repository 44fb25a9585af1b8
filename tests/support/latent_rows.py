"""Sequences of latent rows in a cache of their own, and what attention over them should give."""

from __future__ import annotations

from typing import Any

import torch

from kvarn.kernels.batch import PagedBatch

BLOCK = 16
HEADS, SIZE, VALUE = 11, 40, 24
"""Heads that fill no whole piece of work, rows that fill no whole register."""
SCALE = 0.3


class LatentRows:
    """Sequences of latent rows over a cache whose unwritten slots are NaN."""

    def __init__(self, kernels: Any, dtype: Any, lengths: list[int], blocks: int = 60) -> None:
        generator = torch.Generator().manual_seed(sum(lengths))
        self.kernels = kernels
        self.cache = kernels.operations.new_latent_cache(1, blocks, SIZE, dtype)
        self.cache.keys[0].fill_(torch.nan)
        self.rows = [torch.randn(length, SIZE, generator=generator) for length in lengths]
        self.queries = [torch.randn(length, HEADS, SIZE, generator=generator) for length in lengths]
        free = (torch.randperm(blocks - 1, generator=generator) + 1).tolist()
        self.tables = [[free.pop() for _ in range(-(-length // BLOCK))] for length in lengths]
        self.done = [0] * len(lengths)

    def fill(self, sequence: int, count: int) -> None:
        """As if so many tokens of a sequence had been computed."""
        for position in range(count):
            block = self.tables[sequence][position // BLOCK]
            self.cache.keys[0][block, 0, position % BLOCK] = self.rows[sequence][position]
        self.done[sequence] = count

    def step(self, *counts: tuple[int, int]) -> list[torch.Tensor]:
        """The next tokens of some sequences, (sequence, count) each: [count, H, VALUE] of each."""
        spans = [(s, range(self.done[s], self.done[s] + count)) for s, count in counts]
        width = max(len(self.tables[s]) for s, _ in spans)
        slots = [self.tables[s][p // BLOCK] * BLOCK + p % BLOCK for s, span in spans for p in span]
        batch = PagedBatch(
            positions=torch.tensor([p for _, span in spans for p in span]),
            query_starts=torch.tensor([0, *(len(span) for _, span in spans)]).cumsum(0).int(),
            context_lens=torch.tensor([span.stop for _, span in spans], dtype=torch.int32),
            block_tables=torch.tensor(
                [self.tables[s] + [0] * (width - len(self.tables[s])) for s, _ in spans], dtype=torch.int32
            ),
            slot_mapping=torch.tensor(slots),
        )
        queries, rows = (
            torch.cat([of[s][span.start : span.stop] for s, span in spans]) for of in (self.queries, self.rows)
        )
        plan = self.kernels.operations.plan_latent(batch, HEADS, SIZE)
        found = plan.run(queries, rows, self.cache.keys[0], VALUE, SCALE)
        for s, span in spans:
            self.done[s] = span.stop
        return list(found.split([len(span) for _, span in spans]))

    def defined(self, sequence: int) -> torch.Tensor:
        rows = self.rows[sequence].to(self.cache.keys[0].dtype).double()
        scores = torch.einsum("thd,sd->ths", self.queries[sequence].double(), rows) * SCALE
        hidden = torch.arange(len(rows))[:, None] < torch.arange(len(rows))
        return torch.softmax(scores.masked_fill(hidden[:, None], -torch.inf), -1) @ rows[:, :VALUE]
