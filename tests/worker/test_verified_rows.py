"""Proposals on the real executor: the same tokens, and the distribution that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.plan import BlockUpdate, NewSequence, Row, StepPlan
from kvarn.kernels.batch import KVCache
from kvarn.models import Decoder
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.proposers.ngram import NgramProposer
from profiles import thorough

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 0.3, "top_p": 0.9, "n": 3},
    {"temperature": 0.2, "frequency_penalty": 0.2, "repetition_penalty": 1.1},
    {"temperature": 0.0, "allowed_token_ids": list(range(60, 90))},
    {
        "temperature": 0.0,
        "bad_words": [[300, 301], [302]],
        "min_tokens": 30,
        "stop_token_ids": list(range(0, 4096, 16)),
    },
    {"temperature": 0.4, "logit_bias": {70: 4.0}, "top_k": 5},
]


def requests(rounds: int = 2) -> list[Submit]:
    """Prompts that repeat themselves, and that begin alike."""
    rng = np.random.default_rng(1)
    stem = rng.integers(60, 100, 40).tolist()
    return [
        Submit(
            request_id=f"r{index}",
            tenant="t",
            prompt_token_ids=stem + rng.integers(60, 100, 5).tolist() + stem[: 10 + index],
            sampling=SamplingParams(seed=index, max_tokens=60, **sampling),
        )
        for index, sampling in enumerate(SAMPLINGS * rounds)
    ]


def tokens_of(stack: Any, messages: list[Submit]) -> dict[Any, Any]:
    answers = stack.generate(messages)
    return {
        key: (answer.token_ids, answer.finish_reason, [entry.chosen.token_id for entry in answer.logprobs])
        for key, answer in answers.items()
    }


@pytest.fixture(scope="module")
def plain(stack: Any, tiny_model: Callable[[str], Decoder]) -> dict[Any, Any]:
    return tokens_of(stack(tiny_model("kvarn-demo")), requests())


@pytest.mark.parametrize("adaptive", [True, thorough(False)])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_blocks": 15, "max_num_seqs": 6}, {"token_budget": 24}, {"plans_ahead": True}, {"prefix_cache": False}],
    ids=str,
)
def test_tokens_are_the_same_with_guesses_from_earlier_text(stack, tiny_model, plain, options, adaptive):
    config = SpeculationConfig(adaptive=adaptive)
    served = stack(tiny_model("kvarn-demo"), proposer=NgramProposer(config), speculation=config, **options)
    assert tokens_of(served, requests()) == plain
    stats = served.engine.stats()
    if not adaptive:
        assert stats.speculation.accepted_tokens_total > (20 if "token_budget" in options else 100)
    if "num_blocks" in options:
        assert stats.preemptions_total > 0


class _Spec:
    vocab_size = 4
    max_context_length = 64


class FixedLogits:
    """Stands for a decoder: the next token's logits depend on the last token alone."""

    def __init__(self, table: torch.Tensor) -> None:
        from kvarn.kernels.dispatch import kernels_for

        self.spec, self.kernels, self.reads_shared_prefixes = _Spec(), kernels_for(), False
        self.table = table

    def new_kv_cache(self, num_blocks: int, num_states: int = 0) -> KVCache:
        blocks = torch.zeros(num_blocks, 1, 16, 1)
        return KVCache((blocks,), (blocks.clone(),))

    def new_adapter_memory(self, cache: KVCache) -> Any:
        raise AssertionError("no request has an adapter")

    def last_hidden(
        self, tokens: torch.Tensor, _batch: object, _cache: KVCache, rows: torch.Tensor, _states: None
    ) -> torch.Tensor:
        return tokens[rows]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.table[hidden].clone()


@pytest.mark.parametrize("constrained", [False, True])
def test_drawn_tokens_have_the_models_distribution(constrained: bool) -> None:
    """Chi-square of the tokens after each position of the row, whatever was proposed. A constrained row is drawn token
    by token: a bias on all tokens changes no probability."""
    table = 0.5 * torch.randn(4, 4, generator=torch.Generator().manual_seed(5))
    wanted = table.softmax(-1).double().numpy()
    rng = np.random.default_rng(0)
    num_rows, slots = 24_000, 400
    executor = InProcessExecutor(FixedLogits(table), num_blocks=slots, max_num_seqs=slots)  # type: ignore[arg-type]
    counts = np.zeros((3, 4, 4))
    bias = dict.fromkeys(range(4), 1.0) if constrained else {}
    for first in range(0, num_rows, slots):
        likely = [_draw(wanted[[slot % 4 for slot in range(slots)]], rng)]
        likely.append(_draw(wanted[likely[0]], rng))
        guesses = np.stack(likely, axis=1).tolist()
        new = [
            NewSequence(slot, SamplingParams(seed=0, logit_bias=bias), first + slot, [slot % 4], [])
            for slot in range(slots)
        ]
        rows = [
            Row(slot, 0, [slot % 4, *guesses[slot]], [BlockUpdate(0, slot)], True, num_proposals=2)
            for slot in range(slots)
        ]
        releases = list(range(slots)) if first else []
        for slot, result in enumerate(executor.execute(StepPlan(1, releases, new, [], rows)).rows):
            for place, (before, token) in enumerate(zip([slot % 4, *result.token_ids], result.token_ids, strict=False)):
                counts[place, before, token] += 1
                assert result.token_ids[:place] == guesses[slot][:place]
    for place in range(3):
        seen = counts[place].sum(-1, keepdims=True)
        assert seen.min() > (2000, 300, 60)[place]
        expected = seen * wanted
        chi_square = ((counts[place] - expected) ** 2 / expected).sum()
        freedom = 4 * 3
        assert chi_square < freedom + 4.5 * np.sqrt(2 * freedom), place  # hardly ever by chance
    wrong = counts[0].sum(-1, keepdims=True) * np.roll(wanted, 1, axis=-1)
    assert ((counts[0] - wrong) ** 2 / wrong).sum() > 500  # it would notice another distribution


def _draw(chances: Any, rng: Any) -> Any:
    """One token for each row of probabilities."""
    return (chances.cumsum(-1) < rng.random((len(chances), 1))).sum(-1).clip(max=3)


def test_a_row_with_proposals_leaves_the_bits_of_decoding(tiny_model: Callable[[str], Decoder]) -> None:
    """Keys and values of the verified tokens, and the log-probabilities at each of them, against single tokens."""
    model = tiny_model("kvarn-demo")
    prompt, output = list(range(100, 137)), list(range(200, 216))
    sampling = SamplingParams(seed=0, temperature=0.0, allowed_token_ids=output, logprobs=3, max_tokens=64)
    found = []
    for length in (1, 2, 4, 8, 16):
        executor = InProcessExecutor(model, num_blocks=8, max_num_seqs=1)
        blocks = [BlockUpdate(index, index) for index in range(8)]
        new = NewSequence(0, sampling, 0, prompt, [])
        executor.execute(StepPlan(0, [], [new], [], [Row(0, 0, prompt[:-1], blocks, False)]))
        entries = []
        for start in range(0, 16, length):
            tokens = [prompt[-1], *output][start : start + length]
            row = Row(0, 36 + start, tokens, [], True, num_proposals=length - 1)
            masks = {0: tuple(_only(token) for token in output[start : start + length])}
            [result] = executor.execute(StepPlan(1, [], [], [], [row], masks=masks)).rows
            assert result.token_ids == output[start : start + length]
            entries += result.logprobs or []
        cache = executor.runner.cache
        written = [tensor[: (36 + 16) // 16].clone() for tensor in (*cache.keys, *cache.values)]
        found.append((entries, written))
    for entries, written in found[1:]:
        assert entries == found[0][0]
        assert all(torch.equal(one, other) for one, other in zip(written, found[0][1], strict=True))


def _only(token: int) -> bytes:
    mask = bytearray(512)
    mask[token // 8] = 1 << token % 8
    return bytes(mask)
