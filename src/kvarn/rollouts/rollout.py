"""A rollout: a deployment's new version takes over from the stable one step by step, or is rolled back. Pure.

    SHADOW --> CANARY, step 1 ... n --> PROMOTED
       |            |
       +------------+--- a gate failed, no replica, by hand ---> ROLLED_BACK

The shares of the two versions always sum to 1. A failed gate stays failed, and nothing goes forward after it. Both
ends are final.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvarn.config.rollout import RolloutConfig
from kvarn.fleet.desired import replicas_of
from kvarn.rollouts.gates import Gates, read_config
from kvarn.routing.model_choice import version_name
from kvarn.wire.rollouts import ComparedAnswers, RequestOutcome, RolloutDecision

FOLLOW_S = 2.5
"""Seconds within which all processes follow a decision. A version that was rolled back keeps its replicas as long."""
_MAX_SHOWN = 32
"""Compared answers that are kept: they are written with the rollout at each change."""


class RolloutPhase(StrEnum):
    SHADOW = "shadow"  # the new version answers copies of requests
    CANARY = "canary"  # it answers a share of the requests
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"


class RolloutEndedError(Exception):
    """The rollout has ended, or a gate has failed: it cannot go on."""


class Rollout(msgspec.Struct, kw_only=True):
    """The whole state of one rollout, as plain data, and its transitions."""

    model: str
    versions: tuple[int, int]
    """Numbers of the stable version, which serves, and of the candidate."""
    config: str
    """JSON of the `RolloutConfig`."""
    gates: Gates
    phase: RolloutPhase = RolloutPhase.SHADOW
    step: int = -1
    """Position in `steps`; -1 in the shadow."""
    step_began: float = 0.0
    answered: int = 0
    """Requests that the new version has answered in this step."""
    golden_due: bool = False
    """The golden prompts are to be answered before the first step."""
    paused: bool = False
    last_ready: float = 0.0
    """Time at which the new version last had a ready replica, or the rollout began."""
    log: list[RolloutDecision] = []
    compared: list[ComparedAnswers] = []
    """The latest answers that the gates have compared, for people to look at; the gates have counted all."""

    @classmethod
    def start(
        cls,
        model: str,
        versions: tuple[int, int],
        config: RolloutConfig,
        now: float,
        *,
        by: str = "",
        golden: bool = False,
    ) -> Rollout:
        """Begin a rollout of the versions (stable, candidate) in the shadow. `golden`: there are golden prompts, which
        both versions answer before the first step."""
        rollout = cls(
            model=model,
            versions=versions,
            config=config.model_dump_json(),
            gates=Gates.of(config),
            golden_due=golden,
            last_ready=now,
        )
        rollout.gates.begin_step()
        rollout.step_began = now
        rollout._note(now, "start", f"{rollout.candidate} is to replace {rollout.stable}", by)
        return rollout

    @property
    def stable(self) -> str:
        """Name of the version that serves, such as `chat@1`."""
        return version_name(self.model, self.versions[0])

    @property
    def candidate(self) -> str:
        """Name of the version that is to take over."""
        return version_name(self.model, self.versions[1])

    @property
    def settings(self) -> RolloutConfig:
        return read_config(self.config)

    @property
    def ended(self) -> bool:
        return self.phase in (RolloutPhase.PROMOTED, RolloutPhase.ROLLED_BACK)

    @property
    def shares(self) -> dict[str, float]:
        """The share of the requests that each version answers; they sum to 1."""
        match self.phase:
            case RolloutPhase.SHADOW | RolloutPhase.ROLLED_BACK:
                share = 0.0
            case RolloutPhase.CANARY:
                share = self.settings.steps[self.step]
            case RolloutPhase.PROMOTED:
                share = 1.0
        return {self.stable: 1.0 - share, self.candidate: share}

    @property
    def next_share(self) -> float:
        """The share of the next step: the candidate gets its replicas before the requests."""
        steps = self.settings.steps
        return steps[min(self.step + 1, len(steps) - 1)]

    def missing(self, serving: int, ready: int) -> int:
        """Ready replicas that the candidate still needs for the requests of the next step. `serving`: the stable
        version's ready replicas; `ready`: its own."""
        return max(0, replicas_of(self.next_share, serving) - ready)

    def wanted(self, now: float) -> tuple[int, float] | None:
        """The version that has replicas for this rollout at Unix second `now`, and the share of the requests they are
        for."""
        if self.ended and now >= self.log[-1].at + FOLLOW_S:
            return None
        return self.versions[1], self.next_share

    @property
    def began(self) -> float:
        """Unix seconds of its beginning: the identity among the model's rollouts."""
        return self.log[0].at

    @property
    def shadow_share(self) -> float:
        """The share of the requests that are copied to the candidate, compared and dropped."""
        enough = self.answered >= self.settings.shadow_requests
        return 0.0 if enough or self.phase is not RolloutPhase.SHADOW else self.settings.shadow_share

    # Samples --------------------------------------------------------------------------------------------------------

    def shadowed(
        self, stable: RequestOutcome, candidate: RequestOutcome, equal: bool | None = None, request_id: str = ""
    ) -> None:
        """Count one request answered by both with the same seed. `equal`: whether their tokens are equal; None:
        unknown."""
        if self.ended:
            return
        self.gates.add(candidate)
        self.gates.compare(stable, candidate)
        self._show(ComparedAnswers(kind="shadowed", stable=stable, candidate=candidate, equal=equal))
        if equal is not None:
            self.gates.compare_tokens(request_id, equal)
        self.answered += 1

    def answered_by_candidate(self, outcome: RequestOutcome, step: int | None = None) -> None:
        """Count a request that the candidate answered or failed; `step`: the step at that time, if it may be over."""
        if self.phase is RolloutPhase.CANARY:
            self.gates.add(outcome)
            self.answered += step is None or step == self.step

    def matched(self, stable: RequestOutcome, candidate: RequestOutcome) -> None:
        if self.phase is RolloutPhase.CANARY:
            self.gates.compare(stable, candidate)
            self._show(ComparedAnswers(kind="matched", stable=stable, candidate=candidate))

    def golden_answered(self, question: str, stable_right: bool, candidate_right: bool) -> None:
        if self.ended or question in self.gates.questions:
            return
        self.gates.add_golden(question, stable_right, candidate_right)
        answers = ComparedAnswers(
            kind="golden", question=question, stable_right=stable_right, candidate_right=candidate_right
        )
        self._show(answers)

    def golden_done(self) -> None:
        self.golden_due = False

    def _show(self, answers: ComparedAnswers) -> None:
        self.compared = [*self.compared, answers][-_MAX_SHOWN:]

    # Decisions ------------------------------------------------------------------------------------------------------

    def check(self, now: float, *, candidate_ready: bool, enough: bool = True, state: str = "") -> None:
        """Go back, stay, or go a step forward; called each `check_interval_s`. `enough`: whether as many replicas of
        the candidate take requests as the next step needs; `state`: theirs in words."""
        if self.ended:
            return
        settings = self.settings
        if candidate_ready:
            self.last_ready = now
        if self.gates.failure:
            self._end(RolloutPhase.ROLLED_BACK, now, self.gates.failure)
        elif now - self.last_ready > settings.start_timeout_s:
            why = f"no replica was ready for {settings.start_timeout_s:g} s"
            self._end(RolloutPhase.ROLLED_BACK, now, f"{why}: {state}" if state else why)
        elif candidate_ready and enough and not self.paused and not self.waits_for(now):
            self._forward(now)

    def waits_for(self, now: float) -> str:
        """The condition that the next step waits for, in words; empty: none."""
        settings, shadow = self.settings, self.phase is RolloutPhase.SHADOW
        needed = (settings.shadow_requests if settings.shadow_share else 0) if shadow else settings.step_requests
        if self.answered < needed:
            return f"{needed - self.answered} more requests"
        if shadow and self.golden_due:
            return "the golden prompts"
        remaining_s = self.step_began + settings.step_min_s - now
        return f"{remaining_s:.0f} s more" if remaining_s > 0 else ""

    def pause(self, now: float, by: str = "") -> None:
        """Stay at this step. A gate that fails still rolls back. Raises `RolloutEndedError`."""
        self._refuse_if_ended()
        self.paused = True
        self._note(now, "pause", "asked for", by)

    def resume(self, now: float, by: str = "") -> None:
        self._refuse_if_ended()
        self.paused = False
        self._note(now, "resume", "asked for", by)

    def promote(self, now: float, by: str = "") -> None:
        """Give all requests to the new version now, without the steps that are left. Raises `RolloutEndedError`."""
        self._refuse_if_ended()
        if self.gates.failure:
            raise RolloutEndedError(f"{self.candidate} has failed a gate and cannot be promoted: {self.gates.failure}")
        self._end(RolloutPhase.PROMOTED, now, "asked for", by)

    def rollback(self, now: float, by: str = "", reason: str = "asked for") -> None:
        self._refuse_if_ended()
        self._end(RolloutPhase.ROLLED_BACK, now, reason, by)

    def _forward(self, now: float) -> None:
        settings, had = self.settings, self.answered
        if self.step + 1 == len(settings.steps):
            self._end(RolloutPhase.PROMOTED, now, f"no gate failed in any step; the last had {had} requests")
            return
        self.phase, self.step = RolloutPhase.CANARY, self.step + 1
        self.answered, self.step_began = 0, now
        self.gates.begin_step()
        self._note(now, "step", f"no gate failed in {had} requests")

    def _end(self, phase: RolloutPhase, now: float, reason: str, by: str = "") -> None:
        self.phase = phase
        self._note(now, "promote" if phase is RolloutPhase.PROMOTED else "rollback", reason, by)

    def _note(self, now: float, action: str, reason: str, by: str = "") -> None:
        share = self.shares[self.candidate]
        self.log.append(RolloutDecision(at=now, action=action, share=share, reason=reason, by=by))

    def _refuse_if_ended(self) -> None:
        if self.ended:
            raise RolloutEndedError(f"the rollout of {self.candidate} has ended: {self.phase.replace('_', ' ')}")
