"""Two steps in flight: a step is planned before the tokens of the one before it are known."""

from __future__ import annotations

from kvarn.engine.plan import LAST_SAMPLED
from scripted_masks import EveryThird


def test_the_next_step_is_submitted_before_a_result_is_collected(make_world):
    world = make_world(max_in_flight=2)
    events = []
    submit, collect = world.executor.submit, world.executor.collect
    world.executor.submit = lambda plan: (events.append(f"submit {plan.step}"), submit(plan))
    world.executor.collect = lambda: (events.append("collect"), collect())[1]
    world.submit("a", 10, max_tokens=4)
    world.run()
    assert events == ["submit 1", "submit 2", "collect", "submit 3", "collect", "submit 4", "collect", "collect"]
    assert [row.token_ids for plan in world.executor.plans[1:] for row in plan.rows] == [[LAST_SAMPLED]] * 3
    world.assert_answered("a")


def test_nothing_is_computed_past_the_last_token_that_was_asked_for(make_world):
    for max_in_flight in (1, 2):
        world = make_world(max_in_flight=max_in_flight)
        world.submit("a", 10, max_tokens=4)
        world.submit("b", 30, max_tokens=0)
        world.run()
        assert sum(plan.num_tokens for plan in world.executor.plans) == 10 + 3 + 30


def test_a_request_aborted_while_its_step_runs_is_never_heard_of_again(make_world):
    world = make_world(max_in_flight=2, prefix_cache=False)
    world.submit("a", 40, n=2, max_tokens=20)
    world.submit("b", 10, max_tokens=20)
    for _ in range(4):
        world.step()
    world.engine.abort("a")
    heard = len(world.deltas["a"])
    assert world.engine.scheduler.memory.pool.num_held == 1
    world.run()
    assert len(world.deltas["a"]) == heard
    world.assert_answered("b")


def test_when_all_are_aborted_the_step_in_flight_is_still_collected(make_world):
    world = make_world(max_in_flight=2)
    world.submit("a", 10, max_tokens=20)
    world.step()
    world.engine.abort_all()
    assert world.engine.has_work()
    world.run()
    assert len(world.output("a")) == 1


def test_a_masked_sequence_waits_for_its_token_and_the_others_do_not(make_world):
    world = make_world(max_in_flight=2, masks=lambda message: EveryThird() if message.cache_salt else None)
    world.submit("free", 5, max_tokens=9)
    world.submit("masked", 5, max_tokens=9, cache_salt="s")
    world.run()
    rows = [(plan.masks, row) for plan in world.executor.plans for row in plan.rows]
    assert [row.slot in masks for masks, row in rows if LAST_SAMPLED in row.token_ids] == [False] * 8
    world.assert_all_answered()


def test_gauges_count_a_sequence_whose_token_is_in_flight_as_decoding(make_world):
    world = make_world(max_in_flight=2)
    world.submit("a", 10, max_tokens=20)
    world.step()
    stats = world.engine.stats()
    assert (stats.decode_rows, stats.decode_context, stats.prefill_tokens) == (1, 12, 0)
