"""Rows with proposals to verify: several positions are sampled, and what was rejected is rolled back."""

from __future__ import annotations

import pytest

RIGHT, WRONG_AT_ONCE, WRONG_AT_THE_END = [(4, 9)], [(4, 0)], [(4, 3)]


@pytest.mark.parametrize(("script", "steps"), [(RIGHT, 5), (WRONG_AT_ONCE, 24), (WRONG_AT_THE_END, 6)])
def test_proposals_change_the_number_of_steps_and_no_token(make_world, script, steps):
    world = make_world(proposals=script)
    world.submit("a", 20, max_tokens=24)
    assert world.run() == steps
    world.assert_answered("a")
    assert world.proposer.num_proposed > 0


def test_a_rejected_proposal_moves_num_computed_back_and_copies_nothing(make_world):
    world = make_world(proposals=WRONG_AT_ONCE)
    world.submit("a", 15, max_tokens=10)
    world.step()
    [sequence] = world.engine.scheduler.running
    assert (sequence.num_computed_tokens, sequence.num_tokens) == (15, 16)
    world.step()
    assert (sequence.num_computed_tokens, sequence.num_tokens) == (16, 17)
    world.run()
    assert not any(plan.copies for plan in world.executor.plans)
    world.assert_answered("a")


def test_an_answer_ends_at_a_stop_token_among_accepted_proposals(make_world):
    plain, world = make_world(), make_world(proposals=RIGHT)
    for each in (plain, world):
        each.submit("a", 10, max_tokens=30, stop_token_ids=[3, 4, 5], logprobs=0)
        each.run()
    assert world.output("a") == plain.output("a")
    assert world.finish_reason("a") is plain.finish_reason("a")
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in world.deltas["a"])


def test_proposals_take_neither_budget_nor_memory_from_others(make_world):
    def play(proposals):
        world = make_world(proposals=proposals, num_blocks=14, token_budget=24, prefix_cache=False)
        for index in range(4):
            world.submit(f"r{index}", 40, max_tokens=20)
        for _ in range(8):
            world.step()
        return world

    plain, world = play([]), play(WRONG_AT_ONCE)
    rows = [[(row.slot, row.start) for row in plan.rows] for plan in world.executor.plans]
    assert rows == [[(row.slot, row.start) for row in plan.rows] for plan in plain.executor.plans]
    assert any(row.num_proposals for plan in world.executor.plans for row in plan.rows)
    assert all(plan.num_tokens <= 24 for plan in world.executor.plans)
    world.run()
    world.assert_all_answered()


def test_an_engine_with_a_proposer_plans_one_step_at_a_time(make_world):
    """The proposer needs all known tokens."""
    world = make_world(proposals=RIGHT, max_in_flight=2)
    world.submit("a", 20, max_tokens=24)
    assert world.run() == 5
    world.assert_answered("a")
