"""Rollouts of a deployment's versions and the reconciler together: any sequence of deployments, canaries, samples,
decisions, crashes and restarts of the controller."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvarn.config.rollout import RolloutConfig
from kvarn.fleet.desired import replicas_of
from kvarn.fleet.reconciler import Drain, Target, plan
from kvarn.fleet.supervision.lifecycle import LEAVING
from kvarn.replica.client.protocol import ReplicaState
from kvarn.rollouts.rollout import Rollout, RolloutPhase
from kvarn.wire.rollouts import RequestOutcome
from profiles import examples
from replica_world import ReplicaWorld

GOOD = RequestOutcome(prompt_tokens=10, ttft_s=0.1, tpot_s=0.01, completion_tokens=10)
FAILED = RequestOutcome(prompt_tokens=10, failed=True)
STEPS = RolloutConfig(
    steps=(0.1, 0.5, 1.0), shadow_share=0, step_requests=2, step_min_s=0, golden_prompts=0, start_timeout_s=50
)


class AnyVersions(RuleBasedStateMachine):
    @initialize(replicas=st.integers(0, 4), limits=st.sampled_from([(1, 0), (0, 1), (2, 1)]), seed=st.integers())
    def start(self, replicas: int, limits: tuple[int, int], seed: int) -> None:
        self.world = ReplicaWorld(seed)
        self.now = 1000.0
        self.replicas, self.limits = replicas, limits
        self.version = self.newest = 1
        self.wanted = 1
        self.rollout: Rollout | None = None
        self.settle()

    # What the database says ------------------------------------------------------------------------------------------

    @property
    def rolls_out(self) -> bool:
        return self.rollout is not None and not self.rollout.ended

    @property
    def target(self) -> Target:
        target = Target("m", self.version, self.replicas, 0, *self.limits)
        if self.rollout is None or self.rollout.ended:
            return target
        beside = replicas_of(self.rollout.next_share, self.replicas)
        return replace(target, candidate=self.rollout.versions[1], candidate_replicas=beside)

    def ready(self, version: int) -> int:
        return sum(each.ready for each in self.world.observed if each.version == version)

    # What happens ----------------------------------------------------------------------------------------------------

    def reconcile(self) -> None:
        target, before = self.target, self.world.observed
        actions = plan([target], before)
        drained = {action.name for action in actions if isinstance(action, Drain)}
        left = [each for each in before if each.ready and each.name not in drained]
        had = [each for each in before if each.ready]
        if self.rolls_out:  # the version that serves keeps all that were promised
            left, had = ([each for each in some if each.version == self.version] for some in (left, had))
            assert len(left) >= min(len(had), target.replicas)
        else:
            assert len(left) >= min(len(had), target.replicas - target.max_unavailable)
        self.world.apply(actions)

    def settle(self) -> None:
        for _ in range(300):
            self.reconcile()
            self.world.move()

    @precondition(lambda self: not self.rolls_out)
    @rule()
    def deploy(self) -> None:
        self.newest += 1
        self.version = self.wanted = self.newest
        self.reconcile()

    @precondition(lambda self: not self.rolls_out)
    @rule()
    def canary(self) -> None:
        self.newest += 1
        self.rollout = Rollout.start("m", (self.version, self.newest), STEPS, self.now)
        self.reconcile()

    @precondition(lambda self: self.rolls_out)
    @rule(outcome=st.sampled_from([GOOD, GOOD, GOOD, FAILED]), times=st.integers(1, 9))
    def answer(self, outcome: RequestOutcome, times: int) -> None:
        for _ in range(times):
            self.rollout.answered_by_candidate(outcome)

    @precondition(lambda self: self.rolls_out)
    @rule(seconds=st.sampled_from([0.0, 1.0, 60.0]))
    def check(self, seconds: float) -> None:
        self.now += seconds
        stable, candidate = self.rollout.versions
        ready, step = self.ready(candidate), self.rollout.step
        needed = replicas_of(self.rollout.next_share, self.ready(stable))
        failed = bool(self.rollout.gates.failure)
        self.rollout.check(self.now, candidate_ready=ready > 0, enough=ready >= needed)
        if self.rollout.step > step:
            assert ready >= replicas_of(self.rollout.shares[self.rollout.candidate], self.ready(stable))
        assert not failed or self.rollout.phase is RolloutPhase.ROLLED_BACK
        self.decided()

    @precondition(lambda self: self.rolls_out and not self.rollout.gates.failure)
    @rule(action=st.sampled_from(["promote", "rollback"]))
    def by_hand(self, action: str) -> None:
        getattr(self.rollout, action)(self.now, "somebody")
        before = [each.name for each in self.world.observed]
        assert self.rollout.shares[self.rollout.candidate] == (action == "promote")
        assert before == [each.name for each in self.world.observed]  # before any replica is started or stopped
        self.decided()

    def decided(self) -> None:
        if self.rollout.phase is RolloutPhase.PROMOTED:
            self.version = self.wanted = self.rollout.versions[1]
        self.reconcile()

    @rule(replicas=st.integers(0, 4))
    def scale(self, replicas: int) -> None:
        self.replicas = replicas
        self.reconcile()

    @rule(times=st.integers(1, 12))
    def move(self, times: int) -> None:
        for _ in range(times):
            self.world.move()
            self.reconcile()

    @rule()
    def crash(self) -> None:
        self.world.crash()
        self.reconcile()

    @rule()
    def restart(self) -> None:
        """The server starts again: what is known is what the database holds, and no replica is left."""
        if self.rollout is not None:
            self.rollout = msgspec.json.decode(msgspec.json.encode(self.rollout), type=Rollout)
        self.world.replicas.clear()
        self.reconcile()

    # What holds ------------------------------------------------------------------------------------------------------

    @invariant()
    def a_version_that_was_given_up_gets_nothing(self) -> None:
        if self.rollout is not None and self.rollout.phase is RolloutPhase.ROLLED_BACK:
            assert self.rollout.shares == {self.rollout.stable: 1.0, self.rollout.candidate: 0.0}
            assert self.version != self.rollout.versions[1]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.settle()
        assert self.version == self.wanted
        expected = {self.version: self.replicas} if self.replicas else {}
        if self.rolls_out:
            expected[self.rollout.versions[1]] = replicas_of(self.rollout.next_share, self.replicas)
        versions = {each.version for each in self.world.observed}
        assert {version: self.ready(version) for version in versions} == expected
        assert len(self.world.observed) == sum(expected.values())
        assert all(each.state not in LEAVING and each.state is ReplicaState.READY for each in self.world.observed)
        assert plan([self.target], self.world.observed) == []


TestAnyVersions = AnyVersions.TestCase
TestAnyVersions.settings = settings(max_examples=examples(60), stateful_step_count=30)
