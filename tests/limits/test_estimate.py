"""How long answers without a bound will be."""

from __future__ import annotations

import random

from kvarn.limits import estimate
from kvarn.limits.estimate import OutputEstimates


def test_before_any_answer_the_configured_length_is_expected() -> None:
    assert OutputEstimates(0.9, 256).expect("org-1", "tiny") == 256


def test_the_expected_length_is_one_that_nine_of_ten_answers_do_not_pass() -> None:
    estimates, dice = OutputEstimates(0.9, 256), random.Random(7)
    lengths = [int(dice.lognormvariate(4, 1)) + 1 for _ in range(100)]
    for length in lengths:
        estimates.observe("org-1", "tiny", length)
    expected = estimates.expect("org-1", "tiny")
    assert sum(length <= expected for length in lengths) == 90


def test_old_answers_are_forgotten() -> None:
    estimates = OutputEstimates(0.9, 256)
    for length in [1000] * 100 + [10] * 100:
        estimates.observe("org-1", "tiny", length)
    assert estimates.expect("org-1", "tiny") == 10


def test_organisations_and_models_learn_by_themselves() -> None:
    estimates = OutputEstimates(0.5, 256)
    estimates.observe("org-1", "tiny", 5)
    assert estimates.expect("org-2", "tiny") == estimates.expect("org-1", "vec") == 256
    assert estimates.expect("org-1", "tiny") == 5


def test_memory_is_bounded() -> None:
    estimates = OutputEstimates(0.5, 256)
    for number in range(estimate._MAX_PAIRS + 1):
        estimates.observe(f"org-{number}", "tiny", 5)
    assert estimates.expect("org-0", "tiny") == 256 and estimates.expect("org-1", "tiny") == 5
