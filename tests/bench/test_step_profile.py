"""Designed steps give back the step times of a device that has known ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.bench.step_profile import (
    StepSample,
    blocks_for,
    designed_cases,
    errors_by_region,
    fit,
    nonnegative_least_squares,
    region_of,
    spread,
    time_steps,
)
from kvarn.costs.step_times import StepShape, StepTimes
from kvarn.worker.modelled import ModelledExecutor

KNOWN = StepTimes(
    fixed_s=2e-3,
    prefill_token_s=1.3e-4,
    prefill_pair_s=1e-7,
    decode_row_s=1e-4,
    decode_token_s=4e-7,
    further_row_s=6e-5,
    further_token_s=3e-5,
)


def timed(seconds, rounds: int = 2, max_seqs: int = 128, context: int = 8192):
    cases = designed_cases(max_seqs, context)
    executor = ModelledExecutor(seconds, num_blocks=blocks_for(cases), max_context_length=context)
    return list(time_steps(executor, cases, 4096, rounds))


def test_the_fit_gives_back_known_step_times():
    samples = timed(KNOWN.seconds)
    found = fit([sample for _, sample in samples])
    for name in KNOWN.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=0.01), name
    for error in errors_by_region(found, [(case.region, sample) for case, sample in samples]):
        assert error.p95 < 0.01


def test_each_region_is_measured_and_each_case_as_often_as_asked():
    samples = timed(KNOWN.seconds, rounds=3)
    assert {case.region for case, _ in samples} == {"decode", "prompt", "mixed", "verification"}
    assert all(sum(case == other for other, _ in samples) == 3 for case, _ in samples)
    for case, sample in samples:
        assert region_of(sample.shape) == case.region
        assert sample.shape.decode_rows + sample.shape.proposals == case.rows * (1 + case.proposals)
        assert sample.shape.prefill_tokens == case.prompt * case.prompts
        assert sample.shape.decode_context == case.rows * case.context


def test_steps_that_the_machine_held_up_change_little():
    number = 0

    def seconds(shape: StepShape) -> float:
        nonlocal number
        number += 1
        return KNOWN.seconds(shape) * (20.0 if number % 40 == 0 else 1.0)

    found = fit([sample for _, sample in timed(seconds, rounds=4)])
    for shape in (StepShape(0, 0.0, 8, 2048), StepShape(256, 32896.0)):
        assert found.seconds(shape) == pytest.approx(KNOWN.seconds(shape), rel=0.15)


@given(st.integers(0, 2**32 - 1))
def test_nonnegative_coefficients_are_the_best_ones(seed: int):
    """Of a convex problem (Karush, Kuhn and Tucker): no coefficient can be moved so that the errors get smaller."""
    chance = np.random.default_rng(seed)
    features = chance.uniform(0, 1, (30, 5))
    features[:, 3] = features[:, 1] + 1e-3 * chance.uniform(0, 1, 30)  # nearly the same
    wanted = features @ chance.normal(0, 1, 5) + chance.normal(0, 1, 30)
    found = nonnegative_least_squares(features, wanted)
    slopes = features.T @ (features @ found - wanted)
    assert (found >= 0).all()
    assert slopes.min() >= -1e-9
    assert slopes[found > 0] == pytest.approx(0, abs=1e-9)


def test_where_the_linear_form_is_wrong_the_region_says_so():
    def seconds(shape: StepShape) -> float:
        return KNOWN.seconds(shape) * (1.5 if shape.decode_rows and shape.prefill_tokens else 1.0)

    samples = timed(seconds)
    found = fit([sample for case, sample in samples if case.region != "mixed"])
    errors = {each.region: each for each in errors_by_region(found, [(c.region, s) for c, s in samples])}
    assert errors["decode"].p95 < 0.02
    assert errors["mixed"].median == pytest.approx(1 / 1.5 - 1, abs=0.02)


@pytest.mark.parametrize(("max_seqs", "context"), [(1, 128), (2, 65), (8, 300)])
def test_small_models_have_designed_steps_too(max_seqs: int, context: int):
    samples = timed(KNOWN.seconds, rounds=1, max_seqs=max_seqs, context=context)
    assert samples
    assert all(max(case.rows, case.prompts) <= max_seqs for case, _ in samples)


def test_frequent_steps_do_not_outweigh_rare_ones():
    frequent = [StepSample(StepShape(0, 0.0, 1, 100), 0.001)] * 1000
    rare = [StepSample(StepShape(512, 131328.0), 0.1)] * 3
    kept = spread([*frequent, *rare])
    assert kept.count(rare[0]) == 3
    assert 0 < kept.count(frequent[0]) <= 40
