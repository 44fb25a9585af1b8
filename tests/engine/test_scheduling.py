from __future__ import annotations

import pytest

from kvarn.costs.step_times import StepTimes
from kvarn.engine.plan import StepPlan
from kvarn.engine.step_time import StepTimeModel


def test_a_long_prompt_is_computed_in_chunks_of_the_token_budget(make_world):
    world = make_world(token_budget=32)
    world.submit("a", 100, max_tokens=1)
    world.run()
    assert [plan.num_tokens for plan in world.executor.plans] == [32, 32, 32, 4]
    assert [plan.rows[0].sample for plan in world.executor.plans] == [False, False, False, True]
    world.assert_answered("a")


def test_decodes_go_first_and_the_rest_of_the_budget_goes_to_prompts(make_world):
    world = make_world(token_budget=32)
    world.submit("a", 10, max_tokens=20)
    world.step()
    world.submit("b", 100, max_tokens=1)
    world.step()
    assert [len(row.token_ids) for row in world.executor.plans[-1].rows] == [1, 31]


def test_a_finished_request_leaves_at_once_and_a_waiting_one_joins_at_once(make_world):
    world = make_world(max_num_seqs=1)
    world.submit("a", 10, max_tokens=2)
    world.submit("b", 10, max_tokens=2)
    assert world.run() == 4
    admitted = [plan.step for plan in world.executor.plans if plan.new_sequences]
    assert admitted == [1, 3]
    assert world.executor.plans[2].releases == [0]


def seconds_of(plan: StepPlan) -> float:
    """A machine on which a prompt token takes 1 ms and a decode 2 ms."""
    return 0.005 + sum(0.002 if len(row.token_ids) == 1 else 0.001 * len(row.token_ids) for row in plan.rows)


def test_a_long_prompt_never_stalls_decodes_past_the_tpot_target(make_world):
    world = make_world(num_blocks=400, seconds=seconds_of, tpot_target_ms=50.0, token_budget=2048)
    for index in range(4):
        world.submit(f"chat{index}", 30, max_tokens=150)
    world.step()
    world.submit("long", 2000, max_tokens=2)
    first = len(world.executor.plans)
    world.run()
    beside = [plan for plan in world.executor.plans[first:] if any(len(row.token_ids) > 1 for row in plan.rows)]
    assert max(seconds_of(plan) for plan in beside) < 0.055
    late = [seconds_of(plan) for plan in beside[10:-1]]
    assert sum(late) / len(late) > 0.04, "the time that the target leaves is used"
    world.assert_answered("long")


def test_a_target_that_cannot_be_met_still_lets_prompts_through(make_world):
    world = make_world(seconds=seconds_of, tpot_target_ms=1.0, min_prefill_chunk=16)
    world.submit("chat", 10, max_tokens=100)
    for _ in range(20):
        world.step()
    world.submit("long", 160, max_tokens=1)
    world.step()
    assert len(world.executor.plans[-1].rows[1].token_ids) == 16
    for _ in range(9):
        world.step()
    world.assert_answered("long")


def test_prompts_stretch_a_step_that_misses_its_target_anyway_by_the_configured_factor(make_world):
    world = make_world(num_blocks=400, seconds=seconds_of, tpot_target_ms=10.0, max_prefill_stretch=2.0)
    for index in range(20):
        world.submit(f"chat{index}", 10, max_tokens=100)
    for _ in range(20):
        world.step()
    world.submit("long", 1000, max_tokens=1)
    world.run()
    beside = [plan for plan in world.executor.plans if len(plan.rows) == 21]
    chunks = [len(plan.rows[-1].token_ids) for plan in beside]
    late = chunks[5:-1]  # before that the model of step times explores
    decodes_alone_ms = 5 + 20 * 2
    assert 0.8 * decodes_alone_ms < sum(late) / len(late) < 1.1 * decodes_alone_ms
    world.assert_answered("long")


def test_without_running_decodes_the_token_budget_alone_counts(make_world):
    world = make_world(num_blocks=200, seconds=seconds_of, tpot_target_ms=1.0, token_budget=2048)
    world.submit("a", 2000, max_tokens=1)
    world.run()
    assert len(world.executor.plans) == 1


def test_when_memory_runs_out_the_latest_gives_way_and_loses_nothing(make_world):
    world = make_world(num_blocks=8)
    for name in "abc":
        world.submit(name, 17, max_tokens=60)
        world.step()
    world.run()
    assert world.engine.stats().preemptions_total > 0
    resumed = [a.prompt_token_ids for plan in world.executor.plans for a in plan.new_sequences if a.output_token_ids]
    assert world.messages["a"].prompt_token_ids not in resumed
    world.assert_all_answered()
    assert world.engine.stats().prompt_tokens_total == 51


def test_a_preempted_request_goes_on_from_the_prefix_cache(make_world):
    world = make_world(num_blocks=9)
    world.submit("a", 30, max_tokens=60)
    world.submit("b", 30, max_tokens=60)
    world.run()
    resumed = [
        (plan, admission)
        for plan in world.executor.plans
        for admission in plan.new_sequences
        if admission.output_token_ids
    ]
    assert resumed
    plan, admission = resumed[0]
    row = next(row for row in plan.rows if row.slot == admission.slot)
    assert row.start >= 16
    world.assert_answered("b")


def test_the_lowest_priority_gives_way_even_if_it_came_first(make_world):
    world = make_world(num_blocks=8, priority_ageing_s=1000.0)
    world.submit("batch", 30, max_tokens=60, priority=10)
    world.step()
    world.submit("chat", 30, max_tokens=60)
    world.run()
    resumed = [a for plan in world.executor.plans for a in plan.new_sequences if a.output_token_ids]
    assert {tuple(a.prompt_token_ids) for a in resumed} == {tuple(world.messages["batch"].prompt_token_ids)}
    world.assert_all_answered()


def test_equal_priorities_never_push_each_other_out_for_a_slot(make_world):
    world = make_world(max_num_seqs=1)
    world.submit("a", 10, max_tokens=50)
    world.step()
    world.submit("b", 10, max_tokens=3)
    world.run()
    assert world.engine.stats().preemptions_total == 0


def test_nobody_is_preempted_for_one_who_would_not_fit_even_then(make_world):
    world = make_world(num_blocks=10, max_num_seqs=4)
    world.submit("chat0", 60, max_tokens=30)
    world.submit("batch", 30, max_tokens=30, priority=10)
    world.step()
    world.submit("chat1", 140, max_tokens=3)
    world.step()
    assert world.engine.stats().preemptions_total == 0
    world.run()
    world.assert_answered("chat1")


def test_one_blocked_head_does_not_block_others_that_fit(make_world):
    world = make_world(num_blocks=10)
    world.submit("running", 90, max_tokens=40)
    world.step()
    world.submit("large", 100, max_tokens=5)
    world.submit("small", 5, max_tokens=5)
    world.step()
    assert len(world.output("small")) == 1
    assert world.output("large") == []
    world.run()
    world.assert_answered("large")


def test_small_requests_do_not_pass_a_blocked_one_for_ever(make_world):
    world = make_world(num_blocks=12, priority_ageing_s=1.0, prefix_cache=False)
    world.submit("small0", 30, max_tokens=30)
    world.step()
    world.submit("large", 170, max_tokens=5)
    for index in range(1, 200):
        if world.deltas["large"]:
            break
        world.submit(f"small{index}", 30, max_tokens=30)
        for _ in range(8):
            world.step(seconds=0.1)
    assert world.deltas["large"], "a stream of small requests starved the large one"
    world.run()


def test_nobody_starts_in_a_step_in_which_memory_ran_out(make_world):
    world = make_world(num_blocks=8)
    world.submit("a", 60, max_tokens=50)
    world.submit("b", 60, max_tokens=50)
    world.submit("c", 5, max_tokens=5)
    while world.engine.has_work():
        before = world.engine.stats().preemptions_total
        world.step()
        if world.engine.stats().preemptions_total > before:
            assert not world.executor.plans[-1].new_sequences
    world.assert_all_answered()


def test_more_decodes_than_budget_take_turns(make_world):
    world = make_world(token_budget=4, max_num_seqs=8)
    for index in range(8):
        world.submit(f"r{index}", 3, max_tokens=60)
    for _ in range(30):
        world.step()
    before = [len(world.output(f"r{index}")) for index in range(8)]
    assert min(before) >= 1, "as many decodes as the budget has tokens starve no prompt"
    for _ in range(20):
        world.step()
    gained = [len(world.output(f"r{index}")) - old for index, old in enumerate(before)]
    assert max(gained) - min(gained) <= 3
    assert sum(gained) == 80
    world.run()


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_turns_of_a_conversation_reuse_prompt_and_answer(make_world, prefix_cache):
    world = make_world(num_blocks=100, prefix_cache=prefix_cache)
    world.submit("turn1", 50, max_tokens=50)
    world.run()
    history = [*world.messages["turn1"].prompt_token_ids, *world.output("turn1")]
    world.submit("turn2", [*history, 1, 2, 3], max_tokens=5)
    world.run()
    assert world.cached_tokens("turn2") == (96 if prefix_cache else 0)
    world.assert_answered("turn2")


@pytest.mark.parametrize("label", ["cache_salt", "tenant"])
def test_only_requests_of_the_same_tenant_and_salt_share_blocks(make_world, label):
    world = make_world()
    for name, value in (("a", "x"), ("b", "y"), ("c", ""), ("d", "x")):
        world.submit(name, list(range(40)), **{"tenant": "t", "cache_salt": "s", label: value})
        world.run()
    assert [world.cached_tokens(name) for name in "abcd"] == [0, 0, 0, 32]


def test_prompts_computed_side_by_side_end_up_in_the_same_blocks(make_world):
    world = make_world()
    prompt = list(range(48))
    for name in "abc":
        world.submit(name, [*prompt, ord(name) % 50], seed=ord(name), max_tokens=20)
    world.step()
    tables = [sequence.blocks for sequence in world.engine.scheduler.running]
    assert tables[0][:3] == tables[1][:3] == tables[2][:3]
    world.run()
    world.assert_all_answered()


def seconds_on_a_large_model(plan: StepPlan) -> float:
    """100 ms to read the weights, 5 ms for each token."""
    return 0.1 + 0.005 * plan.num_tokens


@pytest.mark.parametrize(("told", "prompt_tokens"), [(True, range(14, 20)), (False, range(64, 65))])
def test_the_first_decision_of_a_large_model_keeps_the_target_where_it_knows_what_to_expect(
    told, prompt_tokens, make_world
):
    """19 prompt tokens fit beside the first decode. One that knows nothing tries 64, which take twice the target."""
    times = StepTimes(fixed_s=0.1, prefill_token_s=0.005, decode_row_s=0.005)
    step_time = StepTimeModel.knowing(times) if told else None
    world = make_world(num_blocks=400, seconds=seconds_on_a_large_model, tpot_target_ms=200.0, step_time=step_time)
    world.submit("chat", 1, max_tokens=50)
    world.submit("long", 2000, max_tokens=2)
    world.step()
    decode, prompt = world.executor.plans[0].rows
    assert len(decode.token_ids) == 1
    assert len(prompt.token_ids) in prompt_tokens
