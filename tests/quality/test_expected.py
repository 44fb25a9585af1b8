"""Which of several replicas deviates."""

from __future__ import annotations

import pytest

from kvarn.quality.expected import Build, ExpectedAnswers, Question
from kvarn.quality.golden import built_in_prompts
from kvarn.quality.probe import GoldenAnswer, difference
from kvarn.wire.messages import PositionLogprobs, TokenLogprob

BUILD = Build(weights="w", version="1", dtype="bfloat16", quantization="", kernels="cpu (avx2)", kv_dtype="bfloat16")
OTHER = Build(weights="w", version="1", dtype="float32", quantization="", kernels="cpu (avx2)", kv_dtype="float32")
QUANTIZED = Build(
    weights="w", version="1", dtype="bfloat16", quantization="int4", kernels="cpu (avx2)", kv_dtype="bfloat16"
)
TORCH = Build(weights="w", version="1", dtype="float32", quantization="", kernels="torch", kv_dtype="float32")


def question(build: Build = BUILD) -> Question:
    return Question(model="m", build=build, prompt="p")


def answer(logprob: float, token: int = 5) -> GoldenAnswer:
    packed = PositionLogprobs.of(TokenLogprob(token, logprob, 1), []).packed
    return GoldenAnswer(token_ids=(token,), logprobs=(packed,), prompt_logprobs=(packed, packed))


RIGHT, WRONG = answer(-1.0), answer(-1.0 - 1e-12)


def test_the_first_answer_is_expected_and_the_last_bit_counts() -> None:
    expected = ExpectedAnswers()
    assert expected.agrees(question(), RIGHT)
    assert expected.agrees(question(), RIGHT)
    assert not expected.agrees(question(), WRONG)
    assert not expected.agrees(question(), answer(-1.0, token=6))


@pytest.mark.parametrize(
    ("answers", "restarted", "deviating"),
    [
        ({"a": WRONG}, [], {"a"}),
        ({"a": RIGHT, "b": WRONG}, [], {"b"}),
        ({"a": RIGHT, "b": WRONG}, ["b"], {"a"}),
        ({"a": RIGHT, "b": WRONG}, ["a", "b"], {"b"}),
        ({"a": WRONG, "b": WRONG, "c": RIGHT}, [], {"c"}),
        ({"a": WRONG, "b": RIGHT, "c": RIGHT}, ["a"], {"a"}),
        ({"a": WRONG, "b": WRONG}, [], set()),
    ],
    ids=["alone", "two", "two, restarted", "two, both restarted", "expected is wrong", "three", "all agree"],
)
def test_the_majority_then_whoever_loaded_anew_then_what_is_expected_is_right(
    answers: dict[str, GoldenAnswer], restarted: list[str], deviating: set[str]
) -> None:
    expected = ExpectedAnswers()
    expected.agrees(question(), RIGHT)
    assert expected.deviating(question(), answers, restarted) == deviating
    if len(answers) > 1:
        right = next(answer for replica, answer in answers.items() if replica not in deviating)
        assert expected.agrees(question(), right)


def test_the_first_answer_of_a_build_must_be_near_that_of_another() -> None:
    expected = ExpectedAnswers()
    expected.agrees(question(OTHER), RIGHT)
    assert expected.agrees(question(), answer(-1.04))
    expected = ExpectedAnswers()
    expected.agrees(question(OTHER), RIGHT)
    assert not expected.agrees(question(), answer(-1.1))
    assert expected.deviating(question(), {"a": answer(-1.1)}) == {"a"}
    assert "off by 0.1 " in expected.describe(question(), answer(-1.1))
    assert expected.agrees(question(QUANTIZED), answer(-2.0))


def test_where_bits_depend_on_the_batch_answers_must_be_near_only() -> None:
    expected = ExpectedAnswers()
    expected.agrees(question(TORCH), RIGHT)
    assert expected.agrees(question(TORCH), WRONG)
    assert not expected.agrees(question(TORCH), answer(-2.0))


def test_a_number_that_is_none_is_far_from_all() -> None:
    expected = ExpectedAnswers()
    expected.agrees(question(TORCH), RIGHT)
    assert not expected.agrees(question(TORCH), answer(float("nan")))


def test_gaps_are_counted_up_to_the_first_other_token() -> None:
    one = GoldenAnswer(token_ids=(1, 2, 3), logprobs=(RIGHT.logprobs * 3))
    other = GoldenAnswer(token_ids=(1, 9, 3), logprobs=(answer(-1.5).logprobs * 3))
    found = difference(one, other)
    assert (found.agreement, found.mean_gap, found.largest_gap) == (pytest.approx(1 / 3), 0.5, 0.5)


def test_built_in_prompts_are_fixed_and_fit() -> None:
    prompts = built_in_prompts(4, 1000, 2048, 8)
    assert prompts == built_in_prompts(4, 1000, 2048, 8)
    assert len({prompt.name for prompt in prompts}) == len(prompts) == 4
    assert all(0 <= token < 1000 for prompt in prompts for token in prompt.token_ids)
    assert all(len(prompt.token_ids) > 3 * 16 for prompt in prompts)
    assert all(len(prompt.token_ids) + 8 <= 20 for prompt in built_in_prompts(4, 1000, 20, 8))
