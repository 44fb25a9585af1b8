"""What an engine tells of its load, and of how long its steps take."""

from __future__ import annotations

import math

import pytest

from kvarn.costs.step_times import StepShape, StepTimes
from kvarn.engine.plan import StepPlan
from kvarn.wire.engine_stats import STEP_TOKENS


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


TRUE_TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=1e-7, decode_row_s=5e-4, decode_token_s=1e-6)


def seconds_of(plan: StepPlan) -> float:
    shape = StepShape()
    for row in plan.rows:
        shape.add(row.start, len(row.token_ids))
    return TRUE_TIMES.seconds(shape)


def test_the_parts_of_a_steps_time_are_told_once_they_are_known(make_world):
    world = make_world(max_num_seqs=8, num_blocks=600, seconds=seconds_of, token_budget=128)
    assert world.engine.stats().step_times is None
    for index in range(40):
        world.submit(f"r{index}", 20 + 7 * index, max_tokens=5 + index % 11, tenant=str(index))
    world.run()
    told = world.engine.stats().step_times
    assert told is not None
    for shape in (StepShape(0, 0, 6, 900), StepShape(100, 5000, 4, 500)):
        assert told.seconds(shape) == pytest.approx(TRUE_TIMES.seconds(shape), rel=0.1)


def test_waiting_sequences_are_counted_by_what_they_wait_for(make_world):
    world = make_world(max_num_seqs=1)
    world.submit("a", 10, max_tokens=3)
    world.step()
    for name in "bcd":
        world.submit(name, 10, max_tokens=1)
    world.step()
    assert world.engine.stats().waiting_by_reason == {"slot": 3}
    world.engine.abort("d")
    assert world.engine.stats().waiting_by_reason == {"slot": 2}
    world.run()
    assert world.engine.stats().waiting_by_reason == {}


def test_a_request_without_room_in_the_cache_waits_for_blocks(make_world):
    world = make_world(num_blocks=8)
    world.submit("a", 80, max_tokens=3)
    world.step()
    world.submit("b", 80, max_tokens=1)
    world.step()
    assert world.engine.stats().waiting_by_reason == {"blocks": 1}


def test_steps_are_counted_by_their_tokens(make_world):
    world = make_world(token_budget=16)
    world.submit("a", 40, max_tokens=3)
    world.run()
    stats = world.engine.stats()
    counted = dict(zip((*STEP_TOKENS, math.inf), stats.steps_by_tokens, strict=True))
    assert {bound: count for bound, count in counted.items() if count} == {1: 2, 8: 1, 16: 2}
    assert (sum(stats.steps_by_tokens), stats.step_tokens_total) == (stats.step, 42)
