from __future__ import annotations

import torch

from kvarn.worker.logprobs import position_logprobs


def test_many_positions_give_what_each_gives_alone():
    """Also past the number of positions that are looked at together, with as many reports as each asks for."""
    logits = torch.randn(150, 40, generator=torch.Generator().manual_seed(1))
    logits[70] = 0.0  # all tied
    chosen = torch.arange(150) % 40
    num_top = [row % 4 for row in range(150)]
    together = position_logprobs(logits, chosen, num_top)
    assert [len(entry.top) for entry in together] == num_top
    for row in range(150):
        assert together[row : row + 1] == position_logprobs(
            logits[row : row + 1], chosen[row : row + 1], [num_top[row]]
        )


def test_no_positions_give_nothing():
    assert position_logprobs(torch.empty(0, 40), torch.empty(0, dtype=torch.int64), []) == []
