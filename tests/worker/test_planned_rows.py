"""The real executor on plans made ahead, with proposals, with masks, and with blocks stored beyond the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from guesses import KnownAnswers
from kv_connectors import DictConnector
from kvarn.config.speculation import SpeculationConfig
from kvarn.costs.step_times import StepShape
from kvarn.engine.plan import BlockTransfer, BlockUpdate, NewSequence, Row, StepPlan
from kvarn.engine.step_time import StepTimeModel
from kvarn.kernels.backend import torch_kernels
from kvarn.kernels.batch import KVCache
from kvarn.models import Decoder
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.errors import PlanError
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.kv_blocks import BlockTransfers
from kvarn.worker.sampler import Sampler
from scripted_masks import EveryThird, ReadyMask, packed

VOCABULARY = 500


def requests(**extra: Any) -> list[Submit]:
    """Greedy and drawn, with penalties, stop tokens and log-probabilities."""
    rng = np.random.default_rng(3)
    samplings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 1.0, "frequency_penalty": 0.8, "repetition_penalty": 1.3},
        {"temperature": 0.7, "logprobs": 2, "n": 2},
        {"temperature": 1.0, "bad_words": [[5, 6], [7]], "min_tokens": 4, "stop_token_ids": list(range(0, 500, 20))},
    ]
    return [
        Submit(
            request_id=f"r{index}",
            prompt_token_ids=rng.integers(4, VOCABULARY, 17 + 9 * index).tolist(),
            sampling=SamplingParams(seed=index, max_tokens=20, **sampling),
            **extra,
        )
        for index, sampling in enumerate(samplings)
    ]


def answers(stack: Any, messages: list[Submit]) -> dict[Any, Any]:
    return {
        key: (answer.token_ids, answer.logprobs, answer.finish_reason)
        for key, answer in stack.generate(messages).items()
    }


class WideThird(EveryThird):
    width = VOCABULARY


class Unlearned(StepTimeModel):
    """Knows nothing of this machine: then loading a block counts as faster than computing it."""

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """Learn nothing."""


def known(answered: dict[Any, Any]) -> KnownAnswers:
    return KnownAnswers({key: tokens for key, (tokens, _, _) in answered.items()}, length=4, wrong=5)


@pytest.fixture(scope="module")
def plain(stack: Any, tiny_model: Callable[[str], Decoder]) -> dict[Any, Any]:
    """What the synchronous loop answers."""
    return answers(stack(tiny_model("llama")), requests())


def test_proposals_change_no_token_and_no_logprob(stack, tiny_model, plain):
    """Log-probabilities are of the same positions, computed beside others: the last bits may differ."""
    oracle = known(plain)
    verifying = stack(tiny_model("llama"), proposer=oracle, speculation=SpeculationConfig(adaptive=False))
    found = answers(verifying, requests())
    assert oracle.num_proposed > 60
    assert {key: (tokens, reason) for key, (tokens, _, reason) in found.items()} == {
        key: (tokens, reason) for key, (tokens, _, reason) in plain.items()
    }
    for key, (_, entries, _) in plain.items():
        assert [entry.chosen.token_id for entry in found[key][1]] == [entry.chosen.token_id for entry in entries]
        close = [entry.chosen.logprob for entry in entries]
        assert [entry.chosen.logprob for entry in found[key][1]] == pytest.approx(close, abs=1e-4)


def test_a_mask_forces_tokens_whatever_else_is_demanded(stack: Any, tiny_model: Callable[[str], Decoder]) -> None:
    class OneToken(ReadyMask):
        def pack(self, index: int, output_token_ids: list[int], proposals: list[int]) -> tuple[bytes, ...]:
            places = range(len(output_token_ids), len(output_token_ids) + len(proposals) + 1)
            return tuple(packed([100 + place], VOCABULARY) for place in places)

    for options in ({}, {"plans_ahead": True}):
        masked = stack(tiny_model("llama"), masks=lambda message: OneToken() if message.cache_salt else None, **options)
        for tokens, _, _ in answers(masked, requests(cache_salt="s")).values():
            assert tokens == list(range(100, 100 + len(tokens)))


def test_masks_and_proposals_go_together(stack: Any, tiny_model: Callable[[str], Decoder]) -> None:
    masks = {"masks": lambda message: WideThird()}
    alone = answers(stack(tiny_model("llama"), **masks), requests())
    oracle = known(alone)
    found = answers(stack(tiny_model("llama"), proposer=oracle, **masks), requests())
    assert {key: tokens for key, (tokens, _, _) in found.items()} == {key: t for key, (t, _, _) in alone.items()}
    assert all(token % 3 == place % 3 and token < 50 for t, _, _ in alone.values() for place, token in enumerate(t))


def test_a_mask_that_allows_nothing_is_an_error_that_names_the_slot(slot_table: Any) -> None:
    with pytest.raises(PlanError, match="slot 0 allows no token"):
        Sampler(slot_table(10, [{}]), torch_kernels().operations).sample(
            torch.zeros(1, 10), np.array([0]), {0: packed([], 10)}
        )


def test_a_preempted_sequence_goes_on_from_stored_blocks_with_the_same_tokens(stack, tiny_model, plain):
    connector = DictConnector()
    small = stack(tiny_model("llama"), num_blocks=10, connector=connector, prefix_cache=False, step_time=Unlearned())
    found = answers(small, requests())
    assert small.engine.stats().preemptions_total > 0
    assert connector.num_loaded > 0
    assert {key: tokens for key, (tokens, _, _) in found.items()} == {key: t for key, (t, _, _) in plain.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_block_comes_back_as_it_was_stored(dtype: torch.dtype) -> None:
    def part() -> torch.Tensor:
        return torch.randint(-100, 100, (6, 2, 16, 3)).to(dtype)

    cache, connector = KVCache((part(), part()), (part(), part())), DictConnector()
    before = [tensor[2].clone() for tensor in (*cache.keys, *cache.values)]
    transfers = BlockTransfers(cache, connector)
    transfers.store([BlockTransfer(2, b"name")])
    transfers.load([BlockTransfer(5, b"name")])
    for tensor, contents in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(tensor[5], contents)


def test_a_plan_that_stores_blocks_needs_a_connector(tiny_model: Callable[[str], Decoder]) -> None:
    executor = InProcessExecutor(tiny_model("llama"), num_blocks=4, max_num_seqs=1)
    new = NewSequence(0, SamplingParams(seed=0), 0, [5], [])
    with pytest.raises(PlanError, match="no KV connector"):
        executor.execute(
            StepPlan(1, [], [new], [], [Row(0, 0, [5], [BlockUpdate(0, 0)], True)], [BlockTransfer(1, b"name")])
        )
