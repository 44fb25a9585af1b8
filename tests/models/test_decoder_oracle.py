"""Every family's logits and greedy text equal transformers', however the work is cut into steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.models import Decoder, load_model
from oracles import assert_same_logits, expected_logits

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
Factory = Callable[..., tuple[Any, Path]]


@pytest.fixture
def pair(family: str, oracle_factory: Factory) -> tuple[Any, Decoder]:
    oracle, path = oracle_factory(family)
    model = load_model(path, dtype="float32")
    assert isinstance(model, Decoder)
    return oracle, model


def tokens(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 199, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_a_whole_prompt_gives_the_oracles_logits(pair: tuple[Any, Decoder], run_paged: Any) -> None:
    oracle, model = pair
    for length in (1, 2, 16, 33, 70):
        assert_same_logits(run_paged, model, oracle, tokens(length, seed=length))


def test_steps_that_mix_prefill_chunks_and_decode_give_the_oracles_logits(
    pair: tuple[Any, Decoder], run_paged: Any
) -> None:
    oracle, model = pair
    prompts = {"a": tokens(75, 1), "b": tokens(40, 2), "c": tokens(23, 3), "d": tokens(5, 4)}
    schedule = [
        {"a": 7, "b": 1},
        {"c": 16, "a": 1, "b": 17},
        {"a": 30, "d": 4, "b": 1, "c": 1},
        {"a": 1, "b": 1, "c": 1, "d": 1},
        {"a": 35, "b": 19, "c": 5},
        {"a": 1, "b": 1},
    ]
    runner = run_paged(model)
    found: dict[str, list[torch.Tensor]] = {name: [] for name in prompts}
    for counts in schedule:
        rows = {}
        for name, count in counts.items():
            begin = runner.lengths.get(name, 0)
            rows[name] = prompts[name][begin : begin + count]
        for name, logits in runner.step(rows).items():
            found[name].append(logits)
    for name, prompt in prompts.items():
        torch.testing.assert_close(torch.cat(found[name]), expected_logits(oracle, prompt), **TOLERANCE)


def test_a_prefix_of_another_sequences_blocks_gives_the_same_logits(pair: tuple[Any, Decoder], run_paged: Any) -> None:
    oracle, model = pair
    first, second = tokens(50, 5), tokens(50, 6)
    second[:32] = first[:32]
    runner = run_paged(model)
    runner.step({"first": first})
    runner.share_prefix("second", "first", num_blocks=2)
    logits = runner.step({"second": second[32:]})["second"]
    torch.testing.assert_close(logits, expected_logits(oracle, second)[32:], **TOLERANCE)
