"""How long answers will be."""

from __future__ import annotations

import random

import pytest

from kvarn.admission.answer_lengths import FIRST_GUESS, MAX_PAIRS, AnswerLengths


def learned(lengths: list[int], model: str = "tiny", tenant: str = "org-1") -> AnswerLengths:
    answers = AnswerLengths()
    for length in lengths:
        answers.learn(model, tenant, length)
    return answers


def test_nothing_is_claimed_before_any_answer() -> None:
    assert AnswerLengths().quantile("tiny", "org-1", 0.9) is None
    assert AnswerLengths().mean("tiny", "org-1") == FIRST_GUESS


def test_the_quantile_is_a_length_that_nine_of_ten_answers_do_not_exceed() -> None:
    dice = random.Random(7)
    lengths = [int(dice.lognormvariate(4, 1)) + 1 for _ in range(100)]
    expected = learned(lengths).quantile("tiny", "org-1", 0.9)
    assert sum(length <= expected for length in lengths) == 90


def test_old_answers_are_forgotten() -> None:
    answers = learned([1000] * 100 + [10] * 100)
    assert answers.quantile("tiny", "org-1", 0.9) == 10
    assert answers.mean("tiny", "org-1") == pytest.approx(10, rel=0.01)


def test_tenants_and_models_learn_by_themselves_and_new_tenants_have_the_models_average() -> None:
    answers = learned([5])
    answers.learn("tiny", "org-2", 15)
    assert answers.quantile("tiny", "org-3", 0.5) is None and answers.quantile("vec", "org-1", 0.5) is None
    assert answers.quantile("tiny", "org-1", 0.5) == answers.mean("tiny", "org-1") == 5
    assert answers.mean("tiny", "org-3") == answers.mean("tiny") == 10
    assert answers.mean("vec", "org-1") == FIRST_GUESS


def test_memory_is_bounded() -> None:
    answers = AnswerLengths()
    for number in range(MAX_PAIRS + 1):
        answers.learn("tiny", f"org-{number}", 5)
    assert answers.quantile("tiny", "org-0", 0.5) is None and answers.quantile("tiny", "org-1", 0.5) == 5
