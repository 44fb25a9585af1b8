"""Sequential tests: how often they raise a false alarm, how soon they find what is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.rollouts.statistics import DifferenceTest, ErrorRateTest, SignTest, log_evidence_since, log_mean
from profiles import effort

FALSE_ALARM = 0.01
NEEDED = math.log(1 / FALSE_ALARM)
RUNS = effort(200, 4000)


def failed_after(test: ErrorRateTest | DifferenceTest, draw: Callable[[], float], most: int) -> int | None:
    for request in range(1, most + 1):
        test.add(draw())  # type: ignore[arg-type]
        if test.log_evidence >= NEEDED:
            return request
    return None


def share_failed(make: Callable[[], DifferenceTest], draw: Callable[[random.Random], float]) -> float:
    failed = 0
    for run in range(RUNS):
        source = random.Random(run)
        failed += failed_after(make(), lambda: draw(source), 300) is not None  # noqa: B023
    return failed / RUNS


def heavy_tailed(source: random.Random) -> float:
    """The logarithm of the ratio of two latencies, one in fifty of which met a stall of up to a hundred times."""
    stall = [source.uniform(0, math.log(100)) if source.random() < 0.02 else 0.0 for _ in range(2)]
    return source.gauss(0, 0.3) + stall[0] - stall[1]


@pytest.mark.parametrize(
    "draw",
    [
        lambda source: source.gauss(0, 0.3),
        lambda source: source.gauss(0, 0.01),
        lambda source: source.gauss(0, 10.0),
        lambda source: source.choice((-1, 1)),
        lambda source: source.choice((-1, 0, 0, 0, 0, 0, 0, 0, 0, 1)),
        heavy_tailed,
        lambda source: math.tan(math.pi * (source.random() - 0.5)),
    ],
    ids=["normal", "narrow", "wide", "signs", "rare", "stalls", "cauchy"],
)
def test_symmetric_differences_of_any_kind_raise_few_false_alarms(draw: Callable[[random.Random], float]) -> None:
    assert share_failed(DifferenceTest, draw) <= FALSE_ALARM
    assert share_failed(lambda: DifferenceTest(tolerance=0.05), draw) <= FALSE_ALARM


@given(st.floats(0.001, 20), st.floats(0, 5), st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 20)), max_size=4))
def test_no_pair_of_opposite_differences_raises_the_mean_evidence(
    size: float, tolerance: float, before: list[tuple[float, int]]
) -> None:
    """What `DifferenceTest` promises rests on: over the two signs of the next difference its e-value does not grow."""
    tests = []
    for sign in (1.0, -1.0, None):
        test = DifferenceTest(tolerance=tolerance)
        for value, times in before:
            for _ in range(times):
                test.add(value)
        if sign is not None:
            test.add(sign * size)
        tests.append(test.log_evidence)
    up, down, now = tests
    assert log_mean([up, down]) <= now + 1e-9 or now < -50


def test_a_slowdown_of_a_fifth_is_found_within_200_pairs() -> None:
    found = []
    for run in range(RUNS):
        source = random.Random(run)
        test = DifferenceTest(tolerance=math.log(1.05))
        found.append(failed_after(test, lambda: math.log(1.2) + source.gauss(0, 0.3), 200))  # noqa: B023
    assert sum(request is not None for request in found) >= 0.99 * RUNS


@given(st.integers(0, 10_000))
def test_a_bound_is_the_value_against_which_there_is_just_enough_evidence(seed: int) -> None:
    source = random.Random(seed)
    test = DifferenceTest()
    for _ in range(source.randint(1, 100)):
        test.add(source.gauss(0.2, 0.3))
    low = test.lower_bound(FALSE_ALARM)
    assert low <= test.mean
    if low > -math.inf:
        below = DifferenceTest(tolerance=low - 1e-6, count=test.count, total=test.total, squares=test.squares)
        above = DifferenceTest(tolerance=low + 1e-6, count=test.count, total=test.total, squares=test.squares)
        assert below.log_evidence >= NEEDED - 1e-3
        assert above.log_evidence <= NEEDED + 1e-3


@given(st.lists(st.floats(-0.7, 0.7), min_size=1, max_size=40), st.floats(-0.5, 0.5))
def test_the_bound_is_no_lower_than_a_value_that_the_evidence_is_against(
    differences: list[float], value: float
) -> None:
    test = DifferenceTest(tolerance=value)
    for each in differences:
        test.add(each)
    assert test.log_evidence < NEEDED or test.lower_bound(FALSE_ALARM) >= value - 1e-6


def test_few_pairs_that_are_all_slower_have_a_bound() -> None:
    test = DifferenceTest(tolerance=0.05)
    for number in range(18):
        test.add(0.44 + 0.02 * (-1) ** number)
    assert test.log_evidence > math.log(600)
    assert test.lower_bound(1 / 600) > 0.05


def test_the_bound_covers_the_true_difference_at_all_times() -> None:
    missed = 0
    for run in range(RUNS // 4):
        source = random.Random(run)
        test = DifferenceTest()
        for _ in range(100):
            test.add(0.2 + heavy_tailed(source))
            if test.lower_bound(FALSE_ALARM) > 0.2:
                missed += 1
                break
    assert missed <= max(1, FALSE_ALARM * RUNS / 4)


@given(st.lists(st.booleans(), max_size=60), st.floats(0.001, 0.3), st.floats(1.1, 3))
def test_the_evidence_of_errors_is_the_ratio_of_likelihoods(failures: list[bool], rate: float, times: float) -> None:
    test = ErrorRateTest(tolerated=rate, unacceptable=rate * times)
    ratio = 1.0
    for failed in failures:
        test.add(failed)
        ratio *= times if failed else (1 - rate * times) / (1 - rate)
    assert test.log_evidence == pytest.approx(math.log(ratio), abs=1e-9)


def test_tolerated_errors_raise_few_false_alarms_and_a_version_that_always_fails_is_found_at_once() -> None:
    def make() -> ErrorRateTest:
        return ErrorRateTest(tolerated=0.01, unacceptable=0.05)

    failed = 0
    for run in range(RUNS):
        source = random.Random(run)
        failed += failed_after(make(), lambda: source.random() < 0.01, 500) is not None  # noqa: B023
    assert failed <= FALSE_ALARM * RUNS
    assert failed_after(make(), lambda: True, 10) == 3


@given(st.integers(0, 30), st.integers(0, 30))
def test_the_evidence_of_signs_is_the_mean_of_likelihood_ratios(more: int, less: int) -> None:
    test = SignTest()
    for _ in range(more):
        test.add(stable=False, candidate=True)
    for _ in range(less):
        test.add(stable=True, candidate=False)
    test.add(stable=True, candidate=True)
    assert test.count == more + less + 1
    steps = 20_000
    chances = ((0.5 + (number + 0.5) / steps / 2) for number in range(steps))
    mean = sum((2 * chance) ** more * (2 * (1 - chance)) ** less for chance in chances) / steps
    assert test.log_evidence == pytest.approx(math.log(mean), rel=1e-3, abs=1e-3)


def test_signs_raise_few_false_alarms_and_twelve_alike_are_found() -> None:
    failed = 0
    for run in range(RUNS):
        source = random.Random(run)
        test = SignTest()
        for _ in range(300):
            test.add(stable=source.random() < 0.3, candidate=source.random() < 0.3)
            if test.log_evidence >= NEEDED or test.log_evidence_either_way >= NEEDED:
                failed += 1
                break
    assert failed <= 2 * FALSE_ALARM * RUNS
    test = SignTest()
    for _ in range(12):
        test.add(stable=False, candidate=True)
    assert test.log_evidence >= math.log(6 / FALSE_ALARM)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=10))
def test_the_mean_of_evidence_is_that_of_what_the_logarithms_stand_for(values: list[float]) -> None:
    assert log_mean(values) == pytest.approx(math.log(sum(map(math.exp, values)) / len(values)), abs=1e-9)


def test_evidence_since_a_step_is_not_hidden_by_what_was_before() -> None:
    """After 1000 good requests, every second one fails."""
    tests = [ErrorRateTest(tolerated=0.01, unacceptable=0.05) for _ in range(2)]
    for _ in range(1000):
        tests[0].add(False)
    for request in range(1, 41):
        for test in tests:
            test.add(request % 2 == 0)
        if log_evidence_since([test.log_evidence for test in tests], 6) >= NEEDED:
            break
    assert request <= 12
    assert tests[0].log_evidence < 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_any_finite_differences_give_evidence_that_is_a_number(differences: list[float]) -> None:
    test = DifferenceTest()
    for difference in differences:
        test.add(difference)
    assert not math.isnan(test.log_evidence)
