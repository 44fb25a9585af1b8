"""Hears the answers of both versions of a rollout, and what copies of requests came to, in one gateway process."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kvarn.answers.model_routes import reason_of
from kvarn.answers.observer import AnswerListener, Observer
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Turn
from kvarn.clock import Clock
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.rollouts.rollout import Rollout, RolloutPhase
from kvarn.rollouts.samples import RolloutSample, RolloutSamples, tpot_of
from kvarn.rollouts.shadow import ComparedAnswer, ShadowResult, Shadows
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.rollouts import RequestOutcome

if TYPE_CHECKING:
    from kvarn.answers.question import Question

_REFUSAL_CHARS = 200
"""Length of the beginning of an answer in which a refusal is recognised."""
_REFUSAL = re.compile(
    r"\b(i('m| am)? (sorry|unable|not able|afraid)|i (can(no|')t|won't|will not|must decline|do not feel comfortable)"
    r"|as an ai\b|i apologi[sz]e)",
    re.IGNORECASE,
)


class RolloutObserver(Observer):
    """Makes samples of requests, and gives each to `report`."""

    def __init__(
        self,
        shadows: Shadows,
        rollout_of: Callable[[str], Rollout | None],
        report: Callable[[Rollout, RolloutSample], None],
    ) -> None:
        self._rollout_of = rollout_of
        self._report = report
        self._clock = shadows.clock
        self._samples = RolloutSamples()
        shadows.on_result, shadows.on_failure = self._shadowed, self._shadow_failed

    def listen(self, turn: Turn, question: Question[Any, Any]) -> AnswerListener | None:
        """Hear an answer whose version a rollout chose."""
        rollout = None if turn.record.choice.route is None or turn.answer else self._compared(turn.record)
        if rollout is None or rollout.phase is not RolloutPhase.CANARY:
            return None
        side = side_of(rollout, turn.record.choice.target)
        return None if side is None else _Heard(self._clock, partial(self._heard, rollout, side), turn)

    def not_begun(self, record: RequestRecord, model: str, error: Exception) -> None:
        rollout = self._compared(record)
        if rollout is not None and side_of(rollout, model) == "candidate" and is_fault(error):
            self._ended(rollout, RequestOutcome(prompt_tokens=0, failed=True), "candidate")

    def _heard(
        self,
        rollout: Rollout,
        side: Literal["stable", "candidate"],
        answer: ComparedAnswer,
        prompt_tokens: int,
        record_id: str,
        error: BaseException | None,
    ) -> None:
        if error is None:
            self._ended(rollout, outcome_of(answer, prompt_tokens, record_id), side)
        elif isinstance(error, Exception) and is_fault(error):
            self._ended(rollout, RequestOutcome(prompt_tokens=prompt_tokens, failed=True), side)

    def _ended(self, rollout: Rollout, outcome: RequestOutcome, side: Literal["stable", "candidate"]) -> None:
        for sample in self._samples.ended(rollout, outcome, candidate=side == "candidate"):
            self._report(rollout, sample)

    def _shadowed(self, result: ShadowResult) -> None:
        rollout = self._rollout_of(result.route)
        if rollout is None or side_of(rollout, result.model) != "candidate":
            return
        # A copy waits for idle capacity: its latencies tell nothing of the version.
        stable, candidate = (
            msgspec.structs.replace(outcome_of(each, 0, record_id), ttft_s=None, tpot_s=None)
            for each, record_id in ((result.answer, result.record_id), (result.copy, ""))
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
        if record.choice.route is None or record.deferred is not None:  # batches and copies are not compared
            return None
        return self._rollout_of(record.choice.route.name)


class _Heard(ComparedAnswer):
    """Hears one answer of a rollout's version."""

    def __init__(
        self, clock: Clock, ended: Callable[[ComparedAnswer, int, str, BaseException | None], None], turn: Turn
    ) -> None:
        super().__init__(clock, turn.record.timeline.received_s)
        self._ended = ended
        self._turn = turn

    def end(self, error: BaseException | None) -> None:
        self._ended(self, self._turn.prompt_tokens, self._turn.record.id, error)


def side_of(rollout: Rollout, model: str) -> Literal["stable", "candidate"] | None:
    """Which version of a rollout a model's name stands for, alone or with an adapter."""
    for version, side in ((rollout.stable, "stable"), (rollout.candidate, "candidate")):
        if model == version or model.startswith(f"{version}:"):
            return "stable" if side == "stable" else "candidate"
    return None


def outcome_of(answer: ComparedAnswer, prompt_tokens: int, record_id: str) -> RequestOutcome:
    count = len(answer.token_ids)
    return RequestOutcome(
        prompt_tokens=prompt_tokens,
        ttft_s=answer.first_s,
        tpot_s=tpot_of(answer.first_s, answer.total_s, count),
        completion_tokens=count,
        refusal=is_refusal(answer.text, answer.finish_reason),
        record_id=record_id,
    )


def is_fault(error: Exception, *, copied: bool = False) -> bool:
    """Whether an error lies with the version. `copied`: the stable version has answered the same request."""
    reason = reason_of(error)
    if reason is not None:
        return reason in ("error", "timeout")
    if isinstance(error, ApiError):
        return error.status not in (429, 503) and (copied or error.status >= 500)
    return copied and not isinstance(error, RequestRefusedError)


def is_refusal(text: str, finish_reason: str | None = None) -> bool:
    """Whether an answer declines to answer: its beginning says so in English, or moderation ended it."""
    return finish_reason == "content_filter" or _REFUSAL.search(text[:_REFUSAL_CHARS].replace("’", "'")) is not None
