"""Who computes which segments of attention, and what that costs: the bits are tested with each kernel."""

from __future__ import annotations

import pytest
import torch

from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.triton import segments
from kvarn.kernels.triton.segments import SplitPlan

pytestmark = pytest.mark.sample

TOGETHER = 16
"""Queries of a tile."""


def make_batch(lengths: list[tuple[int, int]], blocks: int) -> PagedBatch:
    """Queries and context of each sequence; only numbers are read."""
    counts, contexts = zip(*lengths, strict=True)
    tokens = sum(counts)
    return PagedBatch(
        positions=torch.zeros(tokens, dtype=torch.int64),
        query_starts=torch.tensor([0, *counts]).cumsum(0).int(),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        block_tables=torch.zeros(len(lengths), blocks, dtype=torch.int32),
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
    )


def divided(splits: SplitPlan) -> list[int]:
    """Programs of each sequence."""
    return splits.programs.diff().tolist()


def test_one_long_sequence_among_many_is_divided_and_the_others_are_not() -> None:
    lengths = [(1, 200 + sequence) for sequence in range(600)]
    lengths[70] = (1, 131_072)  # behind others that are counted first
    lengths[599] = (1, 0)  # fills the batch up
    splits = SplitPlan.of(make_batch(lengths, 8192), TOGETHER, 8, 2**14)
    programs = divided(splits)
    # A key/value head has 66 programs beside one for each tile.
    each = -(-sum(-(-context // 256) for _, context in lengths) // 66)
    assert programs[70] == -(-512 // each) and set(programs[:70] + programs[71:]) == {1}
    assert sum(programs) <= splits.launched <= 600 // TOGETHER + 600 + 66
    assert splits.partials[70] == 0 and splits.tokens[-1] == 1


def test_sequences_take_room_in_turn_and_the_others_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "PARTS_BYTES", 40)
    lengths = [(1, 2560), (3, 300), (3, 3840), (2, 256), (20, 5000), (1, 6000)]
    splits = SplitPlan.of(make_batch(lengths, 400), TOGETHER, 1, 1)
    # Each segment is for a program of its own. The fifth sequence would need 20 x 20 partials: it has none.
    assert divided(splits) == [10, 2, 1, 1, 2, 24]
    assert splits.partials[:6].tolist() == [0, 10, -1, -1, -1, 16]
    assert splits.tokens.tolist() == [0, 1, 4, 4, 4, 4, 5]


def test_a_window_hides_segments() -> None:
    batch = make_batch([(1, 100_000), (40, 1000)], 6250)
    splits = SplitPlan.of(batch, TOGETHER, 1, 1, window=300)
    # 99,700 to 99,999 are in segments 389 and 390; 661 to 999 in 2 and 3.
    assert divided(splits) == [2, 6]
    assert splits.room == 41 * (341 // 256 + 2)
