from __future__ import annotations

import random

import pytest

from kvarn.costs.step_times import StepShape, StepTimes
from kvarn.engine.step_time import StepTimeModel


def shape_of(prefill: int, start: int, decodes: int, context: int) -> StepShape:
    shape = StepShape()
    if prefill:
        shape.add(start, prefill)
    for _ in range(decodes):
        shape.add(context - 1, 1)
    return shape


TIMES = StepTimes(
    fixed_s=0.004, prefill_token_s=40e-6, prefill_pair_s=10e-9, decode_row_s=200e-6, decode_token_s=0.3e-6
)
"""Of the machine to be learned."""


def law(shape: StepShape, speed: float = 1.0) -> float:
    return TIMES.scaled(speed).seconds(shape)


def random_shape(chance: random.Random) -> StepShape:
    return shape_of(
        chance.choice([0, 0, 16, 100, 512]),
        chance.choice([0, 500, 3000]),
        chance.randint(1, 60),
        chance.randint(50, 3000),
    )


def taught(steps: int, speed: float = 1.0, model: StepTimeModel | None = None) -> StepTimeModel:
    chance, model = random.Random(1), model or StepTimeModel()
    for _ in range(steps):
        shape = random_shape(chance)
        model.observe(shape, law(shape, speed) * chance.uniform(0.97, 1.03))
    return model


def test_a_linear_machine_is_learned():
    model, chance = taught(300), random.Random(2)
    for _ in range(50):
        shape = random_shape(chance)
        assert model.predict(shape) == pytest.approx(law(shape), rel=0.1)


def test_a_machine_that_becomes_slower_is_learned_again():
    model = taught(300)
    taught(600, speed=2.5, model=model)
    shape = shape_of(100, 500, 20, 1000)
    assert model.predict(shape) == pytest.approx(law(shape, 2.5), rel=0.1)


def test_one_outlier_does_not_spoil_the_model():
    model = taught(300)
    shape = shape_of(100, 500, 20, 1000)
    model.observe(shape, 30.0)
    assert model.predict(shape) < 4 * law(shape)
    taught(100, model=model)
    assert model.predict(shape) == pytest.approx(law(shape), rel=0.15)


def test_predictions_are_never_negative():
    chance, model = random.Random(3), StepTimeModel()
    for _ in range(200):
        model.observe(random_shape(chance), chance.uniform(0.0, 0.1))
        assert model.predict(random_shape(chance)) >= 0


def test_identical_steps_for_a_long_time_keep_the_model_stable():
    model = taught(100)
    steady = shape_of(0, 0, 20, 1000)
    for _ in range(5_000):
        model.observe(steady, law(steady))
    assert model.predict(steady) == pytest.approx(law(steady), rel=0.02)
    assert model.predict(shape_of(200, 0, 20, 1000)) < 100 * law(shape_of(200, 0, 20, 1000))


def test_a_long_life_of_decodes_with_a_prompt_now_and_then_keeps_the_model_accurate():
    """As a server lives: rounding errors have ten thousand steps to grow, and features rest for many of them."""
    chance, model, errors = random.Random(4), StepTimeModel(), []
    for step in range(10_000):
        prefill = chance.choice([16, 64, 200, 500, 1500]) if chance.random() < 0.05 else 0
        shape = shape_of(prefill, chance.choice([0, 1000]), chance.randint(1, 32), chance.randint(10, 4000))
        if step > 1_000:
            errors.append(abs(model.predict(shape) / law(shape) - 1))
        model.observe(shape, law(shape) * chance.lognormvariate(0, 0.1))
    assert max(errors) < 1
    assert sorted(errors)[len(errors) // 2] < 0.05


@pytest.mark.parametrize("start", [0, 3000])
@pytest.mark.parametrize("target", [0.02, 0.03])
def test_the_room_for_prompt_tokens_fills_the_step_up_to_its_target(start, target):
    model, decodes = taught(300), shape_of(0, 0, 20, 1000)
    room = model.prefill_room(decodes, start, target)
    decodes.add(start, room)
    assert law(decodes) == pytest.approx(target, rel=0.1)


def test_there_is_no_room_when_the_decodes_alone_take_too_long():
    assert taught(300).prefill_room(shape_of(0, 0, 50, 3000), 0, 0.005) == 0


def test_before_anything_is_known_it_explores_by_doubling():
    model, decodes = StepTimeModel(), shape_of(0, 0, 4, 100)
    assert model.prefill_room(decodes, 0, 10.0) == StepTimeModel.FIRST_GUESS
    tried = shape_of(StepTimeModel.FIRST_GUESS, 0, 4, 100)
    model.observe(tried, law(tried))
    assert model.prefill_room(decodes, 0, 10.0) == 2 * StepTimeModel.FIRST_GUESS


def told(speed: float = 1.0) -> StepTimeModel:
    return StepTimeModel.knowing(TIMES.scaled(speed))


def test_before_the_first_step_it_predicts_what_it_was_told_to_expect():
    model, chance = told(), random.Random(5)
    for _ in range(50):
        shape = random_shape(chance)
        assert model.predict(shape) == pytest.approx(law(shape), rel=0.05)


@pytest.mark.parametrize("wrong_by", [0.2, 4.0])
def test_what_is_observed_takes_over_from_a_wrong_expectation(wrong_by):
    model, shape = told(wrong_by), shape_of(100, 500, 20, 1000)
    errors = [abs(model.predict(shape) / law(shape) - 1)]
    for steps in (20, 100, 200):
        taught(steps, model=model)
        errors.append(abs(model.predict(shape) / law(shape) - 1))
    assert errors[1] < errors[0] / 2
    assert errors[-1] < 0.1


def test_parts_that_were_not_observed_stay_as_expected():
    model = told()
    decodes, prompt = shape_of(0, 0, 20, 1000), shape_of(512, 0, 0, 0)
    for _ in range(2_000):
        model.observe(decodes, 0.5 * law(decodes))
    assert model.predict(decodes) == pytest.approx(0.5 * law(decodes), rel=0.02)
    assert model.predict(prompt) == pytest.approx(law(prompt), rel=0.3)


def test_one_slow_first_step_does_not_overthrow_what_is_expected():
    informed, ignorant, shape = told(), StepTimeModel(), shape_of(0, 0, 1, 50)
    for model in (informed, ignorant):
        model.observe(shape, 10 * law(shape))
    assert informed.predict(shape) < 0.8 * ignorant.predict(shape)


def test_a_row_taken_out_leaves_the_shape_as_it_was():
    shape = shape_of(100, 50, 3, 200)
    before = (shape.prefill_tokens, shape.prefill_pairs, shape.decode_rows, shape.decode_context)
    shape.add(77, 33)
    shape.add(77, 33, sign=-1)
    assert (shape.prefill_tokens, shape.prefill_pairs, shape.decode_rows, shape.decode_context) == before
