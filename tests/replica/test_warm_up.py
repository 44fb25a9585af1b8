"""What an engine computes before its first request is of tokens that the model has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvarn.replica.server.startup.warm_up import warm_up


@pytest.mark.parametrize("vocab_size", [1, 2, 15, 16, 4096])
def test_a_small_vocabulary_is_warmed_up(vocab_size: int) -> None:
    plans: list[Any] = []
    executor: Any = SimpleNamespace(max_context_length=64, num_blocks=4, submit=plans.append, collect=lambda: plans[-1])
    warm_up(executor, vocab_size)
    (first, *_) = plans
    assert len(plans) == 3 and len(first.rows[0].token_ids) == 16
    assert all(token < vocab_size for plan in plans for row in plan.rows for token in row.token_ids)
