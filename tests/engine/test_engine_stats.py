"""What an engine tells of its load, and of how long its steps take."""

from __future__ import annotations

import pytest

from kvarn.engine.plan import StepPlan
from kvarn.engine.step_time import StepShape, StepTimeModel
from kvarn.wire.messages import StepTimes


def test_stats_tell_what_waits_what_is_being_read_and_what_decodes(make_world):
    world = make_world(max_num_seqs=2, token_budget=8, num_blocks=64, prefix_cache=False)
    world.submit("short", 4, max_tokens=20)
    world.submit("long", 30, max_tokens=20)
    world.submit("waits", 7)
    world.submit("batch", 11, priority=10)
    world.step()
    stats = world.engine.stats()
    assert (stats.running, stats.waiting) == (2, 2)
    assert stats.waiting_tokens_by_priority == {0: 7, 10: 11}
    assert (stats.decode_rows, stats.decode_context) == (1, 5), "`short` has its prompt and its first token"
    assert stats.prefill_tokens == 26, "4 of the 8 tokens of the step were left for `long`"


def test_what_was_told_of_the_load_is_gone_when_all_have_their_answers(make_world):
    world = make_world(max_num_seqs=2, num_blocks=20)
    for index in range(6):
        world.submit(f"r{index}", 20, priority=index % 3, n=2)
    world.run()
    stats = world.engine.stats()
    told = (stats.waiting_tokens_by_priority, stats.prefill_tokens, stats.decode_rows, stats.decode_context)
    assert told == ({}, 0, 0, 0)


def seconds_of(plan: StepPlan) -> float:
    shape = StepShape()
    for row in plan.rows:
        shape.add(row.start, len(row.token_ids))
    return true_seconds(shape)


def true_seconds(shape: StepShape) -> float:
    return (
        0.01
        + 1e-4 * shape.prefill_tokens
        + 1e-7 * shape.prefill_pairs
        + 5e-4 * shape.decode_rows
        + 1e-6 * shape.decode_context
    )


def test_the_parts_of_a_steps_time_are_told_once_they_are_known(make_world):
    world = make_world(max_num_seqs=8, num_blocks=600, seconds=seconds_of, token_budget=128)
    assert world.engine.stats().step_times is None
    for index in range(40):
        world.submit(f"r{index}", 20 + 7 * index, max_tokens=5 + index % 11, tenant=str(index))
    world.run()
    told = world.engine.stats().step_times
    assert told is not None
    for shape in (StepShape(0, 0, 6, 900), StepShape(100, 5000, 4, 500)):
        assert predicted(told, shape) == pytest.approx(true_seconds(shape), rel=0.1)


def predicted(told: StepTimes, shape: StepShape) -> float:
    return (
        told.fixed_s
        + told.prefill_token_s * shape.prefill_tokens
        + told.prefill_pair_s * shape.prefill_pairs
        + told.decode_row_s * shape.decode_rows
        + told.decode_token_s * shape.decode_context
    )


def test_coefficients_are_what_predictions_are_made_of():
    shapes = [StepShape(64, 2000, 0, 0), StepShape(0, 0, 8, 1000), StepShape(16, 400, 30, 9000), StepShape(0, 0, 1, 50)]
    model = StepTimeModel(expected=[(shape, true_seconds(shape)) for shape in shapes])
    shape = StepShape(40, 1000, 10, 3000, 7)
    parts = (1, shape.prefill_tokens, shape.prefill_pairs, shape.decode_rows + shape.proposals, shape.decode_context)
    total = sum(seconds * count for seconds, count in zip(model.coefficients, parts, strict=True))
    assert total == pytest.approx(model.predict(shape))
