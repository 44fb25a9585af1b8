"""The steps of a pipeline: several are in flight, each with sequences of its own."""

from __future__ import annotations

import pytest

from kvarn.engine.plan import LAST_SAMPLED


@pytest.mark.parametrize("stages", [2, 3])
def test_each_step_in_flight_has_sequences_of_its_own_and_no_unknown_token(make_world, stages):
    world = make_world(max_in_flight=stages, micro_batches=stages)
    flying, most = [], 0
    submit, collect = world.executor.submit, world.executor.collect

    def watch(plan):
        slots = {row.slot for row in plan.rows if row.sample}
        assert all(slots.isdisjoint(other) for other in flying)
        assert not any(LAST_SAMPLED in row.token_ids for row in plan.rows)
        flying.append(slots)
        submit(plan)

    def take():
        nonlocal most
        most = max(most, len(flying))
        flying.pop(0)
        return collect()

    world.executor.submit, world.executor.collect = watch, take
    for index in range(7):
        world.submit(f"r{index}", 3 + index, max_tokens=12, n=1 + index % 2)
    world.run()
    assert most == stages
    world.assert_all_answered()


def test_decodes_are_spread_over_the_stages(make_world):
    world = make_world(max_in_flight=2, micro_batches=2)
    for index in range(8):
        world.submit(f"r{index}", 4, max_tokens=30)
    world.run()
    widths = [len(plan.rows) for plan in world.executor.plans[4:-4]]
    assert set(widths) == {4}


def test_parts_of_one_prompt_follow_each_other_through_the_stages(make_world):
    world = make_world(max_in_flight=2, micro_batches=2, token_budget=32)
    events = []
    submit, collect = world.executor.submit, world.executor.collect
    world.executor.submit = lambda plan: (events.append("submit"), submit(plan))
    world.executor.collect = lambda: (events.append("collect"), collect())[1]
    world.submit("a", 128, max_tokens=2)
    world.run()
    assert events[:5] == ["submit", "submit", "collect", "submit", "collect"]
    world.assert_answered("a")


def test_sequences_that_give_way_while_they_fly_draw_the_same_tokens(make_world):
    world = make_world(max_in_flight=2, micro_batches=2, num_blocks=12, prefix_cache=False)
    for index in range(4):
        world.submit(f"r{index}", 30, max_tokens=50)
    world.run()
    assert world.engine.stats().preemptions_total > 0
    world.assert_all_answered()
