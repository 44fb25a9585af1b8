"""How many proposals are verified: as many as pay, by what was right before and by the price of a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from engine_world import ScriptedProposer
from kvarn.costs.step_times import StepShape
from kvarn.engine.plan import Row, StepPlan
from kvarn.engine.proposals.budget import ProposalBudget, ProposalRow, StepPrices
from kvarn.engine.proposals.record import GuessRecord
from kvarn.engine.step_time import StepTimeModel
from profiles import thorough


def priced(step_s: float, row_s: float, proposal_s: float) -> Callable[[StepPlan], float]:
    def seconds(plan: StepPlan) -> float:
        proposals = sum(row.num_proposals for row in plan.rows)
        return step_s + row_s * (plan.num_tokens - proposals) + proposal_s * proposals

    return seconds


def informed(seconds: Callable[[StepPlan], float]) -> StepTimeModel:
    """What the replica tells the model before the first step."""
    expected = []
    for rows, proposals, prompt in itertools.product((1, 8), (0, 4), (0, 64)):
        shape = StepShape(prompt, prompt * 32, rows, rows * 100, rows * proposals)
        plan_rows = [Row(0, 100, [0] * (1 + proposals), [], True, False, proposals)] * rows
        plan_rows += [Row(0, 0, [0] * prompt, [], False)]
        expected.append((shape, seconds(StepPlan(1, [], [], [], plan_rows))))
    return StepTimeModel(expected=expected)


def world_of(make_world, seconds, proposer):
    return make_world(
        seconds=seconds,
        num_blocks=2000,
        proposer=proposer,
        adaptive=True,
        step_time=informed(seconds),
        recount_every=50,
    )


def speed(make_world, seconds, proposer=None, streams: int = 1) -> float:
    """Tokens a second by the executor's own clock."""
    world = world_of(make_world, seconds, proposer)
    for index in range(streams):
        world.submit(f"r{index}", 20 + index, max_tokens=200)
    world.run()
    world.assert_all_answered()
    return 200 * streams / sum(map(seconds, world.executor.plans))


@pytest.mark.parametrize("is_free", [True, False])
@pytest.mark.parametrize("streams", [1, 16])
@pytest.mark.parametrize("script", [[(8, 99)], [(8, 4)], [(6, 1), (6, 2)], [(4, 0)], [(8, 0), (8, 0), (8, 8)]])
@pytest.mark.parametrize("proposal_s", [thorough(1e-5), 1e-3, thorough(4e-3)])
def test_it_is_never_much_slower_than_without(make_world, script, streams, proposal_s, is_free):
    """Whatever a proposal costs, and however many are right."""
    seconds = priced(0.01, 1e-3, proposal_s)
    without = speed(make_world, seconds, streams=streams)
    assert speed(make_world, seconds, ScriptedProposer(script, is_free), streams=streams) > 0.96 * without


@pytest.mark.parametrize("is_free", [True, False])
def test_right_guesses_that_cost_little_are_verified_whole(make_world, is_free):
    seconds = priced(0.01, 1e-3, 1e-4)
    proposer = ScriptedProposer([(8, 99)], is_free)
    assert speed(make_world, seconds, proposer) > 5 * speed(make_world, seconds)


def test_only_the_part_of_a_guess_that_is_likely_right_is_verified(make_world):
    world = world_of(make_world, priced(0.01, 1e-3, 2e-3), ScriptedProposer([(8, 3)]))
    world.submit("a", 20, max_tokens=400)
    world.run()
    lengths = [row.num_proposals for plan in world.executor.plans[-40:] for row in plan.rows]
    assert sorted(lengths)[len(lengths) // 2] == 3


def test_guessing_that_takes_too_long_is_skipped(make_world):
    class Slow(ScriptedProposer):
        def seconds(self, num_sequences: int) -> float:
            return 0.02

    proposer = Slow([(8, 99)], is_free=False)
    world = world_of(make_world, priced(0.01, 1e-3, 1e-5), proposer)
    for index in range(3):
        world.submit(f"r{index}", 20, max_tokens=100)
    world.run()
    assert proposer.num_proposed == 0


def test_guesses_that_turn_right_are_verified_again(make_world):
    """What was not worth verifying is compared with the tokens drawn, so it is noticed."""
    script = [(6, 0)] * 100 + [(6, 99)] * 400
    world = world_of(make_world, priced(0.01, 1e-3, 3e-3), ScriptedProposer(script))
    world.submit("a", 20, max_tokens=800)
    world.run()
    world.assert_answered("a")
    assert len(world.executor.plans) < 500


def test_a_tenant_pays_for_what_was_computed_in_vain(make_world):
    world = make_world(proposals=[(4, 0)], input_token_weight=1.0, output_token_weight=2.0)
    world.submit("a", 20, max_tokens=3, tenant="t")
    world.run()
    account = world.engine.scheduler.tenants.open("t", 1.0)
    rejected = sum(row.num_proposals for plan in world.executor.plans for row in plan.rows)
    assert rejected > 0
    assert account.counter == 20 + 2 * 3 + rejected
    assert account.served_tokens == 20 + 3


def test_an_ended_sequence_is_forgotten_however_it_ended(make_world):
    world = make_world(proposals=[(2, 9)], num_blocks=12, max_num_seqs=3)
    for index in range(6):
        world.submit(f"r{index}", 30, max_tokens=30, n=2)
    for _ in range(4):
        world.step()
    for index in (0, 5):
        world.engine.abort(f"r{index}")
    world.run()
    assert len(world.proposer.forgotten) >= 2 * 4 + 2


def test_counts_of_proposals_are_reported(make_world):
    world = make_world(proposals=[(4, 2)])
    world.submit("a", 20, max_tokens=31)
    world.run()
    stats = world.engine.stats()
    drawn = [row for plan in world.executor.plans for row in plan.rows if row.num_proposals]
    assert stats.speculation.drafts_total == len(drawn)
    assert stats.speculation.draft_tokens_total == sum(row.num_proposals for row in drawn)
    by_position = stats.speculation.accepted_tokens_per_pos_total
    assert sum(by_position) == stats.speculation.accepted_tokens_total == 2 * len(drawn)
    assert by_position[:3] == [len(drawn), len(drawn), 0]


@pytest.mark.parametrize("chances", [(0.9, 0.8), (0.5, 0.1), (0.99, 0.3)])
def test_the_lengths_are_those_of_the_most_tokens_a_second(chances):
    """Against trying all lengths of three rows."""
    model = StepTimeModel(expected=[(StepShape(0, 0, 1, 10), 1.0)])
    budget = ProposalBudget(ScriptedProposer([(1, 9)]), 4, model, adaptive=True)
    budget.MARGIN = 1.0
    records = [GuessRecord(4) for _ in range(3)]
    for record, right in zip(records, (*chances, 0.6), strict=True):
        for place in range(4):
            record.acceptance.right[place], record.acceptance.tried[place] = 1000 * right, 1000.0
    rows = [ProposalRow(record, 100, 4) for record in records]
    for proposal_s in (0.001, 0.05, 0.1, 0.2, 0.4, 1.0):
        budget.prices = StepPrices(rows=5, step_s=1.0, token_s=proposal_s, pair_s=0.0)
        found = budget.lengths_of(rows, [(4, 0)] * 3, 100, 0)
        own = [[each**n for n in range(1, 5)] for each in (*chances, 0.6)]

        def rate(lengths, own=own, proposal_s=proposal_s):
            tokens = 5 + sum(sum(row[:length]) for row, length in zip(own, lengths, strict=True))
            return tokens / (1.0 + proposal_s * sum(lengths))

        best = max(rate(lengths) for lengths in itertools.product(range(5), repeat=3))
        assert rate(found) == pytest.approx(best, rel=0.01)


def test_a_head_that_saves_less_than_it_takes_is_paused(make_world):
    """What follows each step takes its time whether or not its guesses are verified."""

    class Following(ScriptedProposer):
        overhead_s = 0.005

    proposer = Following([(8, 0)], is_free=False)  # always wrong
    world = world_of(make_world, priced(0.01, 1e-3, 1e-5), proposer)
    world.submit("a", 20, max_tokens=1500)
    world.run()
    world.assert_answered("a")
    asked = [bool(row.num_proposals) for plan in world.executor.plans for row in plan.rows]
    assert any(asked[:80]) and not any(asked[100:1000])


def test_a_head_that_saves_more_than_it_takes_is_always_asked(make_world):
    class Following(ScriptedProposer):
        overhead_s = 0.002

    proposer = Following([(4, 99)], is_free=False)  # always right
    world = world_of(make_world, priced(0.01, 1e-3, 1e-5), proposer)
    world.submit("a", 20, max_tokens=1500)
    world.run()
    assert len(world.executor.plans) < 400


def test_guesses_that_do_not_pay_are_asked_for_in_few_steps(make_world):
    """And all at once: most steps do nothing for them."""
    asked: list[int] = []

    class Slow(ScriptedProposer):
        def seconds(self, num_sequences: int) -> float:
            return 1e-4 * num_sequences

        def propose(self, wanted):
            asked.append(len(wanted))
            return super().propose(wanted)

    world = world_of(make_world, priced(0.01, 1e-3, 1e-3), Slow([(8, 0)]))
    for index in range(8):
        world.submit(f"r{index}", 20, max_tokens=800)
    world.run()
    steps = len(world.executor.plans)
    assert len(asked) < steps / 4
    assert asked[-3:] == [8, 8, 8]
