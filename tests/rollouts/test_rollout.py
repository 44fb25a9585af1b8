"""The state machine of a rollout, driven by any sequence of events."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import ValidationError

from kvarn.config.rollout import RolloutConfig
from kvarn.rollouts.rollout import Rollout, RolloutEndedError, RolloutPhase
from kvarn.wire.rollouts import RequestOutcome
from profiles import examples

OUTCOMES = st.builds(
    RequestOutcome,
    prompt_tokens=st.integers(1, 1000),
    failed=st.booleans(),
    ttft_s=st.one_of(st.none(), st.floats(0, 100)),
    tpot_s=st.one_of(st.none(), st.floats(0, 10)),
    completion_tokens=st.integers(0, 1000),
    refusal=st.booleans(),
)
CONFIGS = st.builds(
    RolloutConfig,
    steps=st.sampled_from([(1.0,), (0.5, 1.0), (0.01, 0.05, 0.25, 0.5, 1.0)]),
    shadow_share=st.sampled_from([0.0, 0.5, 1.0]),
    shadow_requests=st.integers(0, 5),
    step_requests=st.integers(1, 5),
    step_min_s=st.sampled_from([0.0, 10.0]),
    identical=st.booleans(),
    start_timeout_s=st.sampled_from([5.0, 100.0]),
)
GOOD = RequestOutcome(prompt_tokens=10, ttft_s=0.1, tpot_s=0.01, completion_tokens=10)


class AnyRollout(RuleBasedStateMachine):
    @initialize(config=CONFIGS, golden=st.booleans())
    def start(self, config: RolloutConfig, golden: bool) -> None:
        self.now = 1000.0
        self.rollout = Rollout.start("m", (1, 2), config, self.now, golden=golden)
        self.seen = 0.0
        self.failed_at: float | None = None
        self.end: RolloutPhase | None = None

    def remember(self) -> None:
        """The share may go back to 0 at any time, but never forward once a gate has failed."""
        share = self.rollout.shares["m@2"]
        if self.failed_at is not None:
            assert share <= self.failed_at
        if self.rollout.gates.failure and self.failed_at is None:
            self.failed_at = share
        if self.end is not None:
            assert self.rollout.phase is self.end
        self.end = self.rollout.phase if self.rollout.ended else None

    @rule(stable=OUTCOMES, candidate=OUTCOMES, equal=st.sampled_from([True, True, None, False]))
    def shadow(self, stable: RequestOutcome, candidate: RequestOutcome, equal: bool | None) -> None:
        self.rollout.shadowed(stable, candidate, equal, "r")
        self.remember()

    @rule(times=st.integers(1, 6))
    def good_requests(self, times: int) -> None:
        for _ in range(times):
            if self.rollout.phase is RolloutPhase.SHADOW:
                self.rollout.shadowed(GOOD, GOOD, True, "r")
            self.rollout.answered_by_candidate(GOOD)
            self.rollout.matched(GOOD, GOOD)
        self.remember()

    @rule(outcome=OUTCOMES)
    def answer(self, outcome: RequestOutcome) -> None:
        self.rollout.answered_by_candidate(outcome)
        self.remember()

    @rule(stable=OUTCOMES, candidate=OUTCOMES)
    def match(self, stable: RequestOutcome, candidate: RequestOutcome) -> None:
        self.rollout.matched(stable, candidate)
        self.remember()

    @rule(question=st.integers(0, 5), right=st.booleans())
    def golden(self, question: int, right: bool) -> None:
        self.rollout.golden_answered(str(question), True, right)
        self.remember()

    @rule()
    def golden_done(self) -> None:
        self.rollout.golden_done()

    @rule(seconds=st.sampled_from([0.0, 1.0, 11.0, 50.0]), ready=st.sampled_from([True, True, True, False]))
    def check(self, seconds: float, ready: bool) -> None:
        self.now += seconds
        step, phase, paused = self.rollout.step, self.rollout.phase, self.rollout.paused
        waits, failed = self.rollout.waits_for(self.now), bool(self.rollout.gates.failure)
        self.rollout.check(self.now, candidate_ready=ready)
        moved = (self.rollout.step, self.rollout.phase) != (step, phase)
        forward = moved and self.rollout.phase is not RolloutPhase.ROLLED_BACK
        if forward:
            assert ready and not paused and not waits and not failed
        if failed and phase in (RolloutPhase.SHADOW, RolloutPhase.CANARY):
            assert self.rollout.phase is RolloutPhase.ROLLED_BACK
        self.remember()

    @rule(action=st.sampled_from(["pause", "resume", "promote", "rollback"]))
    def by_hand(self, action: str) -> None:
        refused = self.rollout.ended or (action == "promote" and bool(self.rollout.gates.failure))
        if refused:
            before = msgspec.json.encode(self.rollout)
            with pytest.raises(RolloutEndedError):
                getattr(self.rollout, action)(self.now, "somebody")
            assert msgspec.json.encode(self.rollout) == before
        else:
            getattr(self.rollout, action)(self.now, "somebody")
            assert self.rollout.log[-1].by == "somebody"
            assert action not in ("promote", "rollback") or self.rollout.ended
        self.remember()

    @rule()
    def store_and_read(self) -> None:
        stored = msgspec.json.encode(self.rollout)
        self.rollout = msgspec.json.decode(stored, type=Rollout)
        assert msgspec.json.encode(self.rollout) == stored

    @invariant()
    def all_requests_are_answered_by_somebody(self) -> None:
        assert sum(self.rollout.shares.values()) == pytest.approx(1.0)
        assert max(self.rollout.shares.values()) >= 0.5
        assert all(0 <= share <= 1 for share in self.rollout.shares.values())

    @invariant()
    def the_log_ends_with_what_holds(self) -> None:
        assert self.rollout.log[-1].share == self.rollout.shares["m@2"]
        assert all(decision.reason for decision in self.rollout.log)
        if self.rollout.ended:
            assert self.rollout.shares["m@2"] in (0.0, 1.0)

    @precondition(lambda self: not self.rollout.ended)
    @rule()
    def it_comes_to_an_end(self) -> None:
        """From wherever it is, on a copy: with good requests and checks it ends, in one of two ways."""
        rollout, now = msgspec.json.decode(msgspec.json.encode(self.rollout), type=Rollout), self.now
        if rollout.paused:
            rollout.resume(now)
        rollout.golden_done()
        for _ in range(300):
            if rollout.ended:
                break
            now += 1.0
            if rollout.phase is RolloutPhase.SHADOW:
                rollout.shadowed(GOOD, GOOD, True, "r")
            rollout.answered_by_candidate(GOOD)
            rollout.check(now, candidate_ready=True)
        assert rollout.ended
        assert rollout.phase is (RolloutPhase.ROLLED_BACK if rollout.gates.failure else RolloutPhase.PROMOTED)


AnyRollout.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
TestAnyRollout = AnyRollout.TestCase


def test_a_healthy_version_goes_through_shadow_and_all_steps() -> None:
    config = RolloutConfig(shadow_requests=3, step_requests=2, step_min_s=10)
    rollout = Rollout.start("m", (1, 2), config, 0.0, by="ann")
    now = 0.0
    while not rollout.ended:
        now += 5.0
        if rollout.phase is RolloutPhase.SHADOW:
            rollout.shadowed(GOOD, GOOD)
        rollout.answered_by_candidate(GOOD)
        rollout.check(now, candidate_ready=True)
    assert [(entry.action, entry.share) for entry in rollout.log] == [
        ("start", 0.0),
        *[("step", share) for share in config.steps],
        ("promote", 1.0),
    ]
    assert rollout.log[0].by == "ann"


def test_the_latest_compared_answers_are_kept_for_people_to_look_at() -> None:
    rollout = Rollout.start("m", (1, 2), RolloutConfig(shadow_requests=1000), 0.0, golden=True)
    for number in range(40):
        rollout.shadowed(msgspec.structs.replace(GOOD, record_id=f"r{number}"), GOOD, number % 2 == 0)
    assert [(each.stable.record_id, each.equal) for each in rollout.compared if each.stable][-2:] == [
        ("r38", True),
        ("r39", False),
    ]
    assert len(rollout.compared) == 32 and rollout.answered == 40
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(rollout)), Rollout) == rollout, "as it is stored"
    state = msgspec.to_builtins(rollout)
    del state["compared"]
    assert msgspec.convert(state, Rollout).compared == [], "of an earlier version"


def test_golden_prompts_are_among_them_once() -> None:
    rollout = Rollout.start("m", (1, 2), RolloutConfig(), 0.0, golden=True)
    for _ in range(2):
        rollout.golden_answered("capital", True, False)
    (answers,) = rollout.compared
    assert (answers.kind, answers.question) == ("golden", "capital")
    assert (answers.stable_right, answers.candidate_right) == (True, False)


def test_a_version_that_never_gets_ready_is_rolled_back() -> None:
    rollout = Rollout.start("m", (1, 2), RolloutConfig(start_timeout_s=60), 0.0)
    rollout.check(60.0, candidate_ready=False)
    assert not rollout.ended
    rollout.check(61.0, candidate_ready=False)
    assert rollout.phase is RolloutPhase.ROLLED_BACK
    assert "no replica was ready" in rollout.log[-1].reason


def test_a_failed_gate_rolls_back_at_the_next_check_even_while_paused() -> None:
    rollout = Rollout.start("m", (1, 2), RolloutConfig(identical=True), 0.0)
    rollout.pause(1.0)
    rollout.shadowed(GOOD, GOOD, False, "r7")
    rollout.check(2.0, candidate_ready=True)
    assert rollout.phase is RolloutPhase.ROLLED_BACK
    assert "r7" in rollout.log[-1].reason


@pytest.mark.parametrize(
    "wrong",
    [{"steps": (0.5,)}, {"steps": (0.5, 0.1, 1.0)}, {"steps": ()}, {"unacceptable_error_rate": 0.001}],
)
def test_settings_that_lead_nowhere_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RolloutConfig.model_validate(wrong)
