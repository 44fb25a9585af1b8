"""Attention over latent rows, of the reference and of each instruction set, against its definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.errors import KernelInputError, UnsupportedByBackendError

BLOCK = 16
HEADS, SIZE, VALUE = 11, 40, 24
"""Heads that fill no whole piece of work, rows that fill no whole register."""
SCALE = 0.3


class Rows:
    """Sequences of latent rows over a cache whose unwritten slots are NaN."""

    def __init__(self, kernels: Any, dtype: Any, lengths: list[int], blocks: int = 60) -> None:
        generator = torch.Generator().manual_seed(sum(lengths))
        self.kernels = kernels
        self.cache = kernels.new_latent_cache(1, blocks, SIZE, dtype)
        self.cache.keys[0].fill_(torch.nan)
        self.rows = [torch.randn(length, SIZE, generator=generator) for length in lengths]
        self.queries = [torch.randn(length, HEADS, SIZE, generator=generator) for length in lengths]
        free = (torch.randperm(blocks - 1, generator=generator) + 1).tolist()
        self.tables = [[free.pop() for _ in range(-(-length // BLOCK))] for length in lengths]
        self.done = [0] * len(lengths)

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
        plan = self.kernels.plan_latent(batch, HEADS, SIZE)
        found = plan.run(queries, rows, self.cache.keys[0], VALUE, SCALE)
        for s, span in spans:
            self.done[s] = span.stop
        return list(found.split([len(span) for _, span in spans]))

    def defined(self, sequence: int) -> torch.Tensor:
        rows = self.rows[sequence].to(self.cache.keys[0].dtype).double()
        scores = torch.einsum("thd,sd->ths", self.queries[sequence].double(), rows) * SCALE
        hidden = torch.arange(len(rows))[:, None] < torch.arange(len(rows))
        return torch.softmax(scores.masked_fill(hidden[:, None], -torch.inf), -1) @ rows[:, :VALUE]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_of_any_mix_equal_the_definition(every_kernels: Any, dtype: Any) -> None:
    world = Rows(every_kernels, dtype, [70, 17, 33, 1])
    found: list[list[torch.Tensor]] = [[] for _ in world.rows]
    for counts in ([(0, 33), (1, 1)], [(2, 16), (0, 1), (1, 16)], [(0, 36), (2, 17), (3, 1)]):
        for (sequence, _), part in zip(counts, world.step(*counts), strict=True):
            found[sequence].append(part)
    # The reference rounds queries to the cache's type, too.
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    for sequence, parts in enumerate(found):
        torch.testing.assert_close(torch.cat(parts).double(), world.defined(sequence), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_results_are_those_of_the_sequence_alone_to_the_last_bit(isa: str, dtype: Any) -> None:
    from kvarn.kernels.cpu.backend import CpuKernels

    lengths = [70, 17, 33]
    together, alone = (Rows(CpuKernels(isa), dtype, lengths) for _ in range(2))
    want = together.step((0, 70), (1, 17), (2, 33))
    for sequence, length in enumerate(lengths):
        parts = [alone.step((sequence, count))[0] for count in (1, 3, length - 5, 1)]
        assert torch.equal(torch.cat(parts), want[sequence])


def test_what_does_not_fit_is_refused(isa: str) -> None:
    from kvarn.kernels.cpu.backend import CpuKernels

    kernels = CpuKernels(isa)
    with pytest.raises(UnsupportedByBackendError, match="bfloat16 or float32"):
        kernels.new_latent_cache(1, 4, SIZE, "int8")
    world = Rows(kernels, "float32", [5])
    world.queries[0] = world.queries[0][..., :-1]
    with pytest.raises(KernelInputError, match="queries"):
        world.step((0, 5))
    world = Rows(kernels, "float32", [5])
    world.tables[0] = [60]
    with pytest.raises(KernelInputError, match="block 60 of a cache of 60"):
        world.step((0, 5))
