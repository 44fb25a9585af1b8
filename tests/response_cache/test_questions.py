"""The semantic cache's thresholds: learned from comparisons, for a stated share of wrong answers, for each entry."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kvarn.response_cache.questions import Neighbour, Questions
from kvarn.response_cache.threshold import Comparisons, probability_of_at_most
from kvarn.store.owner import Owner, Principal

PROJECT = Principal(Owner("org_1", "proj_1"), cache_salt="salt")
BUCKET = b"bucket"


def unit(angle: float) -> np.ndarray:
    """A vector whose similarity to that of angle 0 is the angle's cosine."""
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


def at(similarity: float) -> np.ndarray:
    return unit(float(np.arccos(similarity)))


def nearest(questions: Questions, vector: np.ndarray, bucket: bytes = BUCKET) -> Neighbour:
    found = questions.nearest(PROJECT, bucket, vector)
    assert found is not None
    return found


def known(*, draw: float = 1.0, most: int = 10, most_bytes: int = 1 << 20, bound: float = 0.05) -> Questions:
    questions = Questions(bound, most, most_bytes, lambda: draw)
    questions.add(PROJECT, BUCKET, b"key", unit(0))
    return questions


def learn(questions: Questions, similarity: float, right: bool, times: int = 1) -> None:
    for _ in range(times):
        questions.learn(PROJECT, nearest(questions, at(similarity)), right)


@pytest.mark.parametrize(("wrong", "tries", "share"), [(0, 100, 0.01), (3, 200, 0.02), (20, 400, 0.05)])
def test_the_probability_is_the_sum_of_the_binomial_distribution(wrong, tries, share):
    terms = (math.comb(tries, each) * share**each * (1 - share) ** (tries - each) for each in range(wrong + 1))
    assert probability_of_at_most(wrong, tries, share) == pytest.approx(math.fsum(terms))


def test_no_answer_is_given_before_enough_comparisons_have_shown_that_it_may_be():
    questions = known()
    assert not nearest(questions, at(0.97)).may_answer
    learn(questions, 0.97, right=True, times=98)
    assert not nearest(questions, at(0.97)).may_answer
    learn(questions, 0.97, right=True)
    assert nearest(questions, at(0.97)).may_answer, "0.95 ** 99 is below 0.05 / 8"


def test_a_threshold_lies_above_the_similarities_that_were_wrong_too_often():
    comparisons = Comparisons(0.05)
    for number in range(400):
        comparisons.add(0.97, True)
        comparisons.add(0.75, number % 4 != 0)
    assert comparisons.threshold is not None and 0.75 < comparisons.threshold <= 0.97
    assert comparisons.allows(0.97, 0.0) and not comparisons.allows(0.75, 0.0)


def test_a_threshold_is_withdrawn_when_answers_turn_out_wrong():
    comparisons = Comparisons(0.05)
    for _ in range(150):
        comparisons.add(0.9, True)
    assert comparisons.threshold is not None
    for _ in range(20):
        comparisons.add(0.99, False)
    assert comparisons.threshold is None


def test_an_entry_whose_answer_was_wrong_answers_only_what_is_nearer():
    questions = known()
    learn(questions, 0.97, right=True, times=300)
    learn(questions, 0.98, right=False)
    assert not nearest(questions, at(0.97)).may_answer and not nearest(questions, at(0.985)).may_answer
    assert nearest(questions, at(0.995)).may_answer
    questions.add(PROJECT, BUCKET, b"other", unit(-1.0))
    assert nearest(questions, unit(-1.0)).may_answer, "other entries are as they were"


def test_some_answers_are_compared_all_the_same():
    questions = known(draw=0.01)
    learn(questions, 0.97, right=True, times=300)
    assert not nearest(questions, at(0.97)).may_answer


def test_only_questions_of_one_bucket_and_project_are_neighbours_and_none_that_is_far():
    questions = known()
    assert questions.nearest(PROJECT, b"else", unit(0)) is None
    assert questions.nearest(replace(PROJECT, owner=Owner("org_1", "proj_2")), BUCKET, unit(0)) is None
    assert questions.nearest(PROJECT, BUCKET, at(0.5)) is None
    assert questions.nearest(replace(PROJECT, cache_salt="salt.1"), BUCKET, unit(0)) is None


def test_the_questions_used_last_are_kept():
    questions = known(most=2)
    questions.add(PROJECT, BUCKET, b"second", at(0.7))
    assert nearest(questions, unit(0)).known.key == b"key"
    questions.add(PROJECT, BUCKET, b"third", at(0.8))
    assert {nearest(questions, at(each)).known.key for each in (0.7, 0.8, 1.0)} == {b"key", b"third"}
    questions.forget(PROJECT, b"key")
    assert nearest(questions, unit(0)).known.key == b"third"


def test_questions_of_all_projects_are_bounded_together_and_the_project_not_used_for_longest_gives_way():
    most = 3 * nearest(known(), unit(0)).known.nbytes
    questions, other = known(most_bytes=most), replace(PROJECT, owner=Owner("org_1", "proj_2"))
    for number in range(3):
        questions.add(other, BUCKET, b"%d" % number, unit(0))
    assert questions.nearest(PROJECT, BUCKET, unit(0)) is None
    again = replace(other, cache_salt="salt.1")  # what it had is gone, and its room is free
    questions.add(again, BUCKET, b"new", unit(0))
    for key in (b"one", b"two"):
        questions.add(PROJECT, BUCKET, key, unit(0))
    assert questions.nearest(again, BUCKET, unit(0)) is not None
    assert questions.nearest(PROJECT, BUCKET, unit(0)) is not None


def test_questions_end_with_their_answers_and_are_swept_from_memory():
    now = [0.0]
    questions = Questions(0.05, 10, 1 << 20, lambda: 1.0, lambda: now[0])
    for key, ttl_s in ((b"short", 5), (b"long", 50), (b"renewed", 5)):
        questions.add(PROJECT, key, key, unit(0), ttl_s)
    now[0] = 4
    questions.add(PROJECT, b"renewed", b"renewed", unit(0), 5)
    now[0] = 6
    questions.sweep()
    left = [key for key in (b"short", b"long", b"renewed") if questions.nearest(PROJECT, key, unit(0)) is not None]
    assert left == [b"long", b"renewed"]
