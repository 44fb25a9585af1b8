"""The whole order of sampling, against the slow oracle."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.kernels.backend import torch_kernels
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.constraints import TokenCounts
from kvarn.worker.errors import InvalidLogitsError, InvalidSamplingError
from kvarn.worker.sampler import Sampled, Sampler
from kvarn.worker.slots import SlotTable
from profiles import examples

Oracle = Callable[..., list[float]]
BuildSlots = Callable[[int, list[dict[str, Any]]], SlotTable]
VOCAB = 40


def run(logits: torch.Tensor, slots: SlotTable) -> Sampled:
    return Sampler(slots, torch_kernels().operations).sample(logits.clone(), np.arange(len(logits)))


def random_logits(rows: int, vocab_size: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


tokens = st.integers(0, 12)
rare_features = st.fixed_dictionaries(
    {
        "prompt": st.lists(tokens, min_size=1, max_size=8),
        "output": st.lists(tokens, max_size=8),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
        "presence_penalty": st.sampled_from([0.0, 0.5, -2.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.7, -0.3]),
        "logit_bias": st.dictionaries(tokens, st.floats(-20, 20, width=32), max_size=4),
        "allowed_token_ids": st.none() | st.lists(st.integers(10, VOCAB - 1), min_size=1, unique=True),
        "bad_words": st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=4),
        "stop_token_ids": st.lists(st.integers(13, 16), max_size=2, unique=True),
        "min_tokens": st.sampled_from([0, 3, 100]),
    }
)


@settings(max_examples=examples(150))
@given(features=st.lists(rare_features, min_size=1, max_size=4), seed=st.integers(0, 100))
def test_masks_biases_and_penalties_match_the_oracle(slot_table, oracle, features, seed):
    """Greedy tokens of constrained rows, with an unconstrained row among them."""
    requests: list[dict[str, Any]] = [{**one, "temperature": 0.0} for one in features]
    requests.insert(1, {"temperature": 0.0})
    logits = random_logits(len(requests), seed=seed)
    result = run(logits, slot_table(VOCAB, requests))
    for row, request in enumerate(requests):
        history = {"prompt": [0], "output": [], **request}
        params = SamplingParams(seed=0, **{k: v for k, v in request.items() if k not in ("prompt", "output")})
        changed = oracle(logits[row].tolist(), history["prompt"], history["output"], params)
        if max(changed) == -torch.inf:
            assert params.allowed_token_ids is not None
            assert int(result.token_ids[row]) in params.allowed_token_ids
        else:
            assert changed[int(result.token_ids[row])] == pytest.approx(max(changed), abs=1e-5)


def test_greedy_takes_the_most_likely_token_and_the_lowest_id_on_a_tie(slot_table: BuildSlots) -> None:
    logits = torch.zeros(3, VOCAB)
    logits[0, [30, 7, 9]] = 2.0
    logits[1, 39] = 1.0
    assert run(logits, slot_table(VOCAB, [{"temperature": 0.0}] * 3)).token_ids.tolist() == [7, 39, 0]


def test_history_is_kept_token_by_token_as_it_is_rebuilt_after_a_preemption(slot_table: BuildSlots) -> None:
    """Frequency penalty, bad words, min_tokens and the position of the draw see the same history both ways."""
    request: dict[str, Any] = {
        "prompt": [1, 2, 3, 3],
        "temperature": 0.8,
        "frequency_penalty": 0.9,
        "repetition_penalty": 1.2,
        "bad_words": [[5], [7, 8], [3, 9]],
        "stop_token_ids": [0],
        "min_tokens": 12,
        "seed": 99,
    }
    slots = slot_table(VOCAB, [request])
    output: list[int] = []
    for step in range(30):
        logits = random_logits(1, seed=step)
        rebuilt = slot_table(VOCAB, [{**request, "output": output}])
        token = int(run(logits, slots).token_ids[0])
        assert token == int(run(logits, rebuilt).token_ids[0])
        slots.record(np.array([0]), np.array([token]))
        output.append(token)
    assert 5 not in output
    assert 0 not in output[:12]
    assert (7, 8) not in list(pairwise(output))
    assert len(set(output)) > 10


def test_a_bad_word_may_begin_in_the_prompt(slot_table: BuildSlots) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = 5.0
    logits[0, 4] = 4.0
    request = {"temperature": 0.0, "bad_words": [[3, 9]], "prompt": [1, 3]}
    assert run(logits, slot_table(VOCAB, [request])).token_ids.tolist() == [4]
    request["prompt"] = [3, 1]
    assert run(logits, slot_table(VOCAB, [request])).token_ids.tolist() == [9]


def test_masks_that_leave_nothing_yield_to_the_allowed_tokens(slot_table: BuildSlots) -> None:
    request = {"allowed_token_ids": [6], "stop_token_ids": [6], "min_tokens": 5, "temperature": 1.0}
    assert run(random_logits(1), slot_table(VOCAB, [request])).token_ids.tolist() == [6]


def test_penalties_count_any_number_of_distinct_tokens() -> None:
    counts = TokenCounts([], [])
    for token in [*range(200), *range(100)]:
        counts.add(token)
    assert counts.ids.tolist() == list(range(200))
    assert counts.counts.tolist() == [2.0] * 100 + [1.0] * 100


def test_token_ids_outside_the_vocabulary_change_nothing_of_the_neighbours(slot_table: BuildSlots) -> None:
    odd = {
        "stop_token_ids": [VOCAB + 3, -1],
        "min_tokens": 2,
        "logit_bias": {VOCAB + 1: 100.0},
        "bad_words": [[VOCAB]],
        "temperature": 0.0,
    }
    logits = random_logits(2)
    slots = slot_table(VOCAB, [odd, {"temperature": 0.0}])
    assert run(logits, slots).token_ids.tolist() == logits.argmax(-1).tolist()
    with pytest.raises(InvalidSamplingError, match="slot 0: none of allowed_token_ids"):
        slot_table(VOCAB, [{"allowed_token_ids": [VOCAB]}])


def every_kind(count: int) -> list[dict[str, Any]]:
    """Requests that use all features, plain ones among them."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
        {"temperature": 1.0, "top_p": 0.95, "logprobs": 3},
        {"temperature": 0.0, "logprobs": 0, "frequency_penalty": 0.5, "output": [3, 3, 4]},
        {"temperature": 1.3, "min_p": 0.05, "repetition_penalty": 1.2, "prompt": [1, 2, 3]},
        {"temperature": 1.0, "logit_bias": {5: 4.0}, "allowed_token_ids": list(range(0, 300, 3))},
        {"temperature": 0.9, "top_k": 700, "bad_words": [[1], [2]], "min_tokens": 4, "stop_token_ids": [9]},
    ]
    return [{**kinds[i % len(kinds)], "seed": 1000 + i} for i in range(count)]


def test_a_row_is_the_same_bit_for_bit_alone_and_in_a_batch(slot_table: BuildSlots) -> None:
    requests = every_kind(48)
    logits = random_logits(48, vocab_size=1000)
    together = run(logits, slot_table(1000, requests))
    for row, request in enumerate(requests):
        alone = run(logits[row : row + 1], slot_table(1000, [request]))
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs.get(0) == together.logprobs.get(row)


def test_logprobs_are_of_the_models_own_distribution_with_ranks(slot_table: BuildSlots) -> None:
    logits = random_logits(2, vocab_size=VOCAB)
    logits[1, [3, 8, 30]] = 9.0  # a tie for the first places
    requests = [{"temperature": 0.0, "logprobs": 5, "logit_bias": {11: 100.0}}, {"temperature": 0.0, "logprobs": 2}]
    result = run(logits, slot_table(VOCAB, requests))
    expected = torch.log_softmax(logits.double(), -1)
    for row, entry in result.logprobs.items():
        token = int(result.token_ids[row])
        assert entry.chosen.token_id == token
        assert entry.chosen.logprob == pytest.approx(float(expected[row, token]), abs=1e-6)
        order = logits[row].sort(descending=True, stable=True).indices.tolist()
        assert entry.chosen.rank == order.index(token) + 1
        assert [top.token_id for top in entry.top] == order[: len(entry.top)]
        assert [top.rank for top in entry.top] == list(range(1, len(entry.top) + 1))
        assert [top.logprob for top in entry.top] == pytest.approx(
            expected[row, order[: len(entry.top)]].tolist(), abs=1e-6
        )
    assert [len(entry.top) for entry in result.logprobs.values()] == [5, 2]
    assert result.logprobs[0].chosen.token_id == 11
    assert result.logprobs[0].chosen.rank > 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("request_of_row", [{"temperature": 0.0}, {"temperature": 1.0}, {"allowed_token_ids": [1]}])
def test_logits_that_are_no_numbers_are_an_error_that_names_the_slot(slot_table, bad, request_of_row):
    logits = random_logits(3)
    logits[2, 17] = bad
    with pytest.raises(InvalidLogitsError, match="slot 2") as caught:
        run(logits, slot_table(VOCAB, [{"temperature": 1.0}, {"temperature": 0.0}, request_of_row]))
    assert caught.value.slot == 2


@pytest.mark.parametrize(
    "demand",
    [
        {"repetition_penalty": 1e-300, "bad_words": [[3]]},
        {"repetition_penalty": 1e300, "prompt": list(range(VOCAB))},
        {"presence_penalty": 1e300, "output": list(range(VOCAB))},
        {"frequency_penalty": -1e300, "output": [1, 1]},
        {"logit_bias": dict.fromkeys(range(VOCAB), -1e300), "repetition_penalty": 1e300},
        {"logit_bias": {1: 1e300}},
        {"temperature": 1e300, "allowed_token_ids": [1, 2]},
    ],
)
def test_no_finite_parameter_makes_logits_infinite(slot_table: BuildSlots, demand: dict[str, Any]) -> None:
    result = run(random_logits(1), slot_table(VOCAB, [{"prompt": [0, 1, 3], **demand}]))
    assert 0 <= int(result.token_ids[0]) < VOCAB


def test_top_p_zero_and_top_k_one_are_greedy(slot_table: BuildSlots) -> None:
    logits = random_logits(2)
    requests = [{"top_p": 0.0}, {"top_k": 1}]
    assert run(logits, slot_table(VOCAB, requests)).token_ids.tolist() == logits.argmax(-1).tolist()
