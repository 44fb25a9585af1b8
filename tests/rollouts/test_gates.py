"""The gates of a rollout on simulated traffic: few false alarms, and regressions found soon."""

from __future__ import annotations

import pytest

from kvarn.config.rollout import RolloutConfig
from kvarn.rollouts.gates import GATES, Gates
from kvarn.rollouts.rollout import RolloutPhase
from kvarn.rollouts.samples import MatchedPairs
from kvarn.wire.rollouts import RequestOutcome
from profiles import effort
from rollout_traffic import Version, run_rollout

FAST = RolloutConfig(step_min_s=0, steps=(0.1, 0.5, 1.0))
"""With few steps of 1 %, whose requests take long to simulate."""


def test_versions_that_are_alike_are_rarely_rolled_back() -> None:
    runs = effort(100, 2000)
    failed = [
        rollout.gates.failure
        for rollout, _ in (run_rollout(Version(), Version(), seed, FAST) for seed in range(runs))
        if rollout.phase is not RolloutPhase.PROMOTED
    ]
    assert len(failed) <= max(1, 0.01 * runs), failed


@pytest.mark.parametrize(
    ("candidate", "gate"),
    [
        (Version(slower=1.2), ("ttft", "tpot")),
        (Version(error_rate=0.2), ("errors",)),
        (Version(wrong=0.6), ("golden",)),
        (Version(longer=2.0), ("length",)),
        (Version(longer=0.5), ("length",)),
        (Version(refusal_rate=0.3), ("refusals",)),
    ],
    ids=["a fifth slower", "errors", "golden prompts", "longer", "shorter", "refusals"],
)
def test_a_regression_is_found_within_200_requests(candidate: Version, gate: tuple[str, ...]) -> None:
    runs = effort(20, 400)
    found = 0
    for seed in range(runs):
        rollout, had = run_rollout(Version(), candidate, seed, FAST)
        if rollout.phase is RolloutPhase.ROLLED_BACK:
            found += had <= 200
            assert rollout.gates.failure.startswith(gate)
            assert rollout.shares == {"m@1": 1.0, "m@2": 0.0}
    assert found >= 0.99 * runs


def test_a_version_that_gets_worse_under_load_is_found_in_that_step() -> None:
    runs = effort(10, 200)
    config = RolloutConfig(step_min_s=0, steps=(0.1, 0.5, 1.0), step_requests=150)
    for seed in range(runs):
        rollout, _ = run_rollout(Version(), Version(), seed, config, later=Version(slower=1.5, error_rate=0.2))
        assert rollout.phase is RolloutPhase.ROLLED_BACK
        assert rollout.log[-2].share == 0.5


def test_one_answer_with_other_tokens_fails_an_upgrade_that_must_be_identical_and_no_other() -> None:
    for identical in (True, False):
        gates = Gates.of(RolloutConfig(identical=identical))
        gates.begin_step()
        gates.compare_tokens("r1", equal=True)
        assert not gates.failure
        gates.compare_tokens("r2", equal=False)
        assert ("r2" in gates.failure) == identical
        assert gates.compared == 2


def test_a_golden_prompt_counts_once() -> None:
    gates = Gates.of(RolloutConfig())
    gates.begin_step()
    for _ in range(100):
        gates.add_golden("the same", stable_right=True, candidate_right=False)
    assert not gates.failure
    for number in range(20):
        gates.add_golden(str(number), stable_right=True, candidate_right=False)
    assert gates.failure.startswith("golden: +100.0% more of the golden prompts are wrong")


def test_every_gate_says_what_it_has_seen() -> None:
    gates = Gates.of(RolloutConfig())
    assert all(gates.describe(gate) == "nothing was seen yet" for gate in GATES)
    gates.begin_step()
    one = RequestOutcome(prompt_tokens=3, ttft_s=0.2, tpot_s=0.1, completion_tokens=9)
    for _ in range(50):
        gates.add(one)
        gates.compare(one, one)
    assert gates.describe("errors") == "0 of 50 requests failed"
    assert gates.describe("ttft").startswith("+0.0% slower (at least -")
    assert all(evidence < 0 for evidence in gates.evidence().values())


def test_pairs_have_prompts_of_like_length_and_each_answer_is_in_one_pair() -> None:
    pairs, made = MatchedPairs(), []
    for number, length in enumerate([10, 500, 100, 90, 11, 505, 300, 310]):
        outcome = RequestOutcome(prompt_tokens=length, completion_tokens=number)
        made += [*pairs.add(outcome, candidate=length in (11, 100, 500))]
        assert [*pairs.add(RequestOutcome(prompt_tokens=1, failed=True), candidate=True)] == []
    assert [(stable.prompt_tokens, candidate.prompt_tokens) for stable, candidate in made] == [
        (10, 11),
        (90, 100),
        (505, 500),
    ]
    assert [*pairs.add(outcome, candidate=False)] == []
