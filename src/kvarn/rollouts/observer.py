"""Hears the answers of both versions of a rollout, and what copies of requests came to, in one gateway process."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.work import RequestRecord
from kvarn.rollouts.gates import RequestOutcome
from kvarn.rollouts.outcomes import is_fault, outcome_of
from kvarn.rollouts.rollout import Rollout, RolloutPhase
from kvarn.rollouts.samples import MatchedPairs, RolloutSample
from kvarn.rollouts.shadow import ComparedAnswer, ShadowResult, Shadows

if TYPE_CHECKING:
    from kvarn.answers.chat.answer import ChatRun
    from kvarn.answers.completion_answer import CompletionRun

RunT = TypeVar("RunT", bound="ChatRun | CompletionRun")


class RolloutObserver:
    """Makes samples of requests.

    Args:
        shadows: Whose copies are compared.
        rollout_of: The rollout that goes on for a route's name; None: there is none.
        report: Is given each sample.
    """

    def __init__(
        self,
        shadows: Shadows,
        rollout_of: Callable[[str], Rollout | None],
        report: Callable[[Rollout, RolloutSample], None],
    ) -> None:
        self._rollout_of = rollout_of
        self._report = report
        self._pairs: dict[tuple[str, float], MatchedPairs] = {}
        """By the rollout's model and beginning."""
        shadows.on_result, shadows.on_failure = self._shadowed, self._shadow_failed

    def watch(self, record: RequestRecord, run: RunT) -> RunT:
        """A run as it is; where a rollout gave it its version, it is heard to its end."""
        rollout = self._compared(record)
        if rollout is None or rollout.phase is not RolloutPhase.CANARY:
            return run
        side = side_of(rollout, record.chosen_model)
        return run if side is None else dataclasses.replace(run, deltas=self._heard(run.deltas, record, rollout, side))

    def failed(self, record: RequestRecord, model: str, error: Exception) -> None:
        """A version could not begin an answer."""
        rollout = self._compared(record)
        if rollout is not None and side_of(rollout, model) == "candidate" and is_fault(error):
            self._answered(rollout, RequestOutcome(prompt_tokens=0, failed=True))

    async def _heard(
        self,
        deltas: AsyncGenerator[ChoiceDelta, None],
        record: RequestRecord,
        rollout: Rollout,
        side: Literal["stable", "candidate"],
    ) -> AsyncGenerator[ChoiceDelta, None]:
        answer = ComparedAnswer(record.received)
        prompt_tokens = record.work.prompt_tokens if record.work is not None else 0
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    answer.take(delta)
                    yield delta
        except Exception as error:
            if is_fault(error) and side == "candidate":
                self._answered(rollout, RequestOutcome(prompt_tokens=prompt_tokens, failed=True))
            raise
        outcome = outcome_of(answer, prompt_tokens)
        if side == "candidate":
            self._answered(rollout, outcome)
        pairs = self._pairs.setdefault((rollout.model, rollout.began), MatchedPairs())
        for stable, candidate in pairs.add(outcome, candidate=side == "candidate"):
            sample = RolloutSample(kind="matched", step=rollout.step, stable=stable, candidate=candidate)
            self._report(rollout, sample)

    def _answered(self, rollout: Rollout, outcome: RequestOutcome) -> None:
        self._report(rollout, RolloutSample(kind="answered", step=rollout.step, candidate=outcome))

    def _shadowed(self, result: ShadowResult) -> None:
        rollout = self._rollout_of(result.route)
        if rollout is None or side_of(rollout, result.model) != "candidate":
            return
        # A copy waits for idle capacity: its latencies tell nothing of the version.
        stable, candidate = (
            msgspec.structs.replace(outcome_of(each, 0), ttft_s=None, tpot_s=None)
            for each in (result.answer, result.copy)
        )
        equal = result.answer.token_ids == result.copy.token_ids
        sample = RolloutSample(kind="shadowed", step=rollout.step, stable=stable, candidate=candidate, equal=equal)
        self._report(rollout, sample)

    def _shadow_failed(self, route: str, model: str, error: Exception) -> None:
        rollout = self._rollout_of(route)
        if rollout is not None and side_of(rollout, model) == "candidate" and is_fault(error, copied=True):
            stable, candidate = RequestOutcome(prompt_tokens=0), RequestOutcome(prompt_tokens=0, failed=True)
            self._report(rollout, RolloutSample(kind="shadowed", step=rollout.step, stable=stable, candidate=candidate))

    def _compared(self, record: RequestRecord) -> Rollout | None:
        if record.route is None or record.best_priority is not None:  # batches and copies are not compared
            return None
        return self._rollout_of(record.route.name)


def side_of(rollout: Rollout, model: str) -> Literal["stable", "candidate"] | None:
    """Which version of a rollout a model's name stands for, alone or with an adapter."""
    for version, side in ((rollout.stable, "stable"), (rollout.candidate, "candidate")):
        if model == version or model.startswith(f"{version}:"):
            return "stable" if side == "stable" else "candidate"
    return None
