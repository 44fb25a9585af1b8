"""Rollouts of simulated versions: the product's steps, gates and rollback."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from kvarn.config.rollout import RolloutConfig
from kvarn.costs.replica_model import ReplicaModel
from kvarn.rollouts.rollout import RolloutPhase
from kvarn.simulator.scenario import RolloutPlan
from simulated_fleet import TIMES, Run, modelled, requests, scenario

STEPS = RolloutConfig(
    steps=(0.25, 1.0), shadow_share=0.5, shadow_requests=10, step_requests=20, step_min_s=10, check_interval_s=2
)

COUNT = 1080


def _rolled_out(replica: ReplicaModel | None = None, **plan: Any) -> Run:
    """Six requests a second for three minutes to four replicas; the new version comes after 10 s."""
    rollout = RolloutPlan(at_s=10.0, replica=replica, **{"rollout": STEPS, **plan})
    one = scenario({"replicas": 4, "update": {"max_surge": 2}}, rollouts=[rollout], duration_s=200)
    return Run(one, requests([number / 6 for number in range(COUNT)], output=6))


@cache
def _no_worse() -> Run:
    return _rolled_out(modelled())


def _slower(factor: float) -> ReplicaModel:
    return modelled(step_times=TIMES.scaled(factor))


def test_a_version_that_is_no_worse_takes_over_step_by_step() -> None:
    run = _no_worse()
    (rollout,) = run.outcome.rollouts
    assert rollout.phase is RolloutPhase.PROMOTED, rollout.gates.failure
    assert [each["action"] for each in run.named("rollout")] == ["start", "step", "step", "promote"]
    start, first, second, promoted = run.times("rollout")
    shares = []
    for begin, end in ((start, first), (first, second), (second, promoted), (promoted, 200.0)):
        chosen = [
            each["replica"].startswith("m@1")
            for each in run.named("sent")
            if begin < each["t"] / 1e6 < end and each["request"] >= 0
        ]
        shares.append(sum(chosen) / len(chosen))
    assert shares[0] == 0
    assert 0.15 < shares[1] < 0.35
    assert shares[2:] == [1.0, 1.0]
    assert first >= start + 20, "the new version's replica takes 20 s to start"
    uses = {use.model: use.replicas[-1][1] for use in run.outcome.deployments}
    assert uses == {"m": 0, "m@1": 4}, "the replicas of the old version drain"
    assert len(run.named("answered")) == COUNT


def test_copies_of_requests_are_answered_by_the_new_version_and_counted_for_nobody() -> None:
    run = _no_worse()
    copies = {each["request"] for each in run.named("sent") if each["request"] < 0}
    assert len(copies) >= STEPS.shadow_requests
    assert {each["replica"].partition("/")[0] for each in run.named("sent") if each["request"] < 0} == {"m@1"}
    assert len(run.outcome.requests) == COUNT
    assert sum(use.model == "m@1" for use in run.outcome.deployments) == 1


@pytest.mark.parametrize(
    ("plan", "gate"),
    [({"replica": _slower(1.6)}, "tpot"), ({"replica": modelled(), "error_rate": 0.3}, "errors")],
)
def test_a_worse_version_is_rolled_back_and_no_answer_is_lost(plan: dict[str, Any], gate: str) -> None:
    run = _rolled_out(**plan)
    (rollout,) = run.outcome.rollouts
    assert rollout.phase is RolloutPhase.ROLLED_BACK
    assert rollout.gates.failure.startswith((gate, "ttft"))
    end = run.times("rollout", action="rollback")[0]
    later = [each for each in run.named("sent") if each["t"] / 1e6 > end + 0.001]
    assert later
    assert not [each for each in later if each["replica"].startswith("m@1")]
    assert len(run.named("answered")) == COUNT
    uses = {use.model: use.replicas[-1][1] for use in run.outcome.deployments}
    assert uses == {"m": 4, "m@1": 0}


def test_a_version_without_a_ready_replica_is_rolled_back_in_time() -> None:
    settings = STEPS.model_copy(update={"start_timeout_s": 15.0})
    (rollout,) = _rolled_out(modelled(), rollout=settings).outcome.rollouts
    assert rollout.phase is RolloutPhase.ROLLED_BACK
    assert "no replica was ready for 15 s" in rollout.log[-1].reason
    assert not rollout.gates.failure


def test_a_second_rollout_is_refused_while_one_is_under_way() -> None:
    plans = [RolloutPlan(at_s=moment, rollout=STEPS) for moment in (10.0, 15.0)]
    one = scenario({"replicas": 1}, rollouts=plans, duration_s=30)
    run = Run(one, requests([float(number) for number in range(30)]))
    assert run.times("rollout", action="refused") == [15.0]
    assert len(run.outcome.rollouts) == 1


def test_settings_of_the_new_version_are_its_own() -> None:
    plan = RolloutPlan(settings={"engine": {"max_num_seqs": 3}}, rollout=STEPS)
    run = Run(scenario(rollouts=[plan], duration_s=30), requests([0.0]))
    deployments = run.simulation.deployments
    assert deployments["m@1"].config.engine.max_num_seqs == 3
    assert deployments["m"].config.engine.max_num_seqs != 3
