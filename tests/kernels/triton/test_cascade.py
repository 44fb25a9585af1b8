"""Sequences that share a prefix: it is read once, and each has the bits that it has alone."""

from __future__ import annotations

import pytest
import torch

from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.backend import Kernels
from kvarn.kernels.batch import HeadShape, PagedBatch, Rotation
from kvarn.kernels.triton import attention

HEADS = HeadShape(12, 1, 16)
"""Five sequences fill a program."""
CONTEXTS = [530, 520, 300, 513, 40, 257, *[529] * 6, 0]
"""The last one fills the batch up. Sequence 3 shares one segment of two, 5 only the first one, 4 nothing."""


def make_batch(rows: list[int], *, shared: bool) -> PagedBatch:
    """One query of each of some sequences."""
    common, tables = list(range(1, 33)), []
    free = iter(range(33, 400))
    for sequence, context in enumerate(CONTEXTS):
        count = -(-context // 16)
        same = 0 if sequence in (4, 12) else 16 if sequence in (3, 5) else min(32, count - 1)
        tables.append([*common[:same], *(next(free) for _ in range(count - same)), *[0] * (35 - count)])
    contexts = torch.tensor([CONTEXTS[row] for row in rows], dtype=torch.int32)
    block_tables = torch.tensor([tables[row] for row in rows], dtype=torch.int32)
    positions = (contexts - 1).clamp(min=0).long()
    slots = block_tables[torch.arange(len(rows)), positions // 16].long() * 16 + positions % 16
    return PagedBatch(
        positions=positions,
        query_starts=torch.arange(len(rows) + 1, dtype=torch.int32),
        context_lens=contexts,
        block_tables=block_tables,
        slot_mapping=torch.where(contexts > 0, slots, -1),
        shares_prefix=shared,
    )


def run(kernels: Kernels, rows: list[int], *, shared: bool, window: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    keys, values = (torch.randn(400, HEADS.kv, 16, HEADS.dim, generator=generator) for _ in range(2))
    qkv = torch.randn(len(CONTEXTS), (HEADS.query + 2 * HEADS.kv) * HEADS.dim, generator=generator)[rows]
    plan = kernels.operations.plan_attention(make_batch(rows, shared=shared), HEADS, window)
    empty = torch.empty(len(rows), 0)
    sinks = torch.randn(HEADS.query, generator=generator)
    return plan.run(qkv, Rotation(empty, empty), AttentionLayer(0.3, None, 4.0, sinks), keys, values)


def test_sequences_that_share_a_prefix_have_the_bits_they_have_alone(kernels: Kernels) -> None:
    every = list(range(len(CONTEXTS)))
    together = run(kernels, every, shared=True)
    assert torch.equal(together, run(kernels, every, shared=False))
    for row in (0, 3):
        assert torch.equal(run(kernels, [row], shared=False), together[row : row + 1])
    # Of a window each sequence sees another part: it reads for itself.
    assert torch.equal(
        run(kernels, every[:3], shared=True, window=70), run(kernels, every[:3], shared=False, window=70)
    )


@pytest.mark.sample
def test_each_segment_is_read_by_as_few_programs_as_its_sequences_fill(kernels: Kernels) -> None:
    every = list(range(len(CONTEXTS)))
    members = attention.plan_attention(make_batch(every, shared=True), HEADS, None).members
    assert members is not None
    found = [
        [[member for member in tile if member >= 0] for tile in tiles if tile[0] >= 0] for tiles in members.tolist()
    ]
    ends = [row for row, context in enumerate(CONTEXTS) if context > 512]
    first = [row for row, context in enumerate(CONTEXTS) if context >= 256]
    both = [row for row in first if row not in (2, 3, 5)]
    assert found[0] == [first[:5], [4], first[5:10], first[10:]]
    assert sorted(found[1]) == sorted([[2], [3], [5], both[:5], both[5:]])
    assert sorted(found[2]) == [[row] for row in ends]
