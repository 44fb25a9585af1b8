"""What the gates of a rollout look at, of an answer or of an error."""

from __future__ import annotations

from kvarn.answers.model_routes import reason_of
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.rollouts.gates import Outcome
from kvarn.rollouts.refusals import is_refusal
from kvarn.rollouts.shadow import ComparedAnswer
from kvarn.wire.openai.errors import ApiError


def outcome_of(answer: ComparedAnswer, prompt_tokens: int) -> Outcome:
    """What the gates look at, of an answer that came to its end."""
    count, tpot_s = len(answer.token_ids), None
    if count > 1 and answer.first_s is not None:
        tpot_s = (answer.total_s - answer.first_s) / (count - 1)
    return Outcome(
        prompt_tokens=prompt_tokens,
        ttft_s=answer.first_s,
        tpot_s=tpot_s,
        completion_tokens=count,
        refusal=is_refusal(answer.text, answer.finish_reason),
    )


def is_fault(error: Exception, *, copied: bool = False) -> bool:
    """Whether an error lies with the version. `copied`: the stable version has answered the same request."""
    reason = reason_of(error)
    if reason is not None:
        return reason in ("error", "timeout")
    if isinstance(error, ApiError):
        return error.status not in (429, 503) and (copied or error.status >= 500)
    return copied and not isinstance(error, RequestRefusedError)
