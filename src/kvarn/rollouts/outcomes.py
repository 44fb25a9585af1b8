"""The outcome of a request, from its answer or its error."""

from __future__ import annotations

import re

from kvarn.answers.model_routes import reason_of
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.rollouts.gates import RequestOutcome
from kvarn.rollouts.shadow import ComparedAnswer
from kvarn.wire.openai.errors import ApiError

_REFUSAL_CHARS = 200
"""Length of the beginning of an answer in which a refusal is recognised."""
_REFUSAL = re.compile(
    r"\b(i('m| am)? (sorry|unable|not able|afraid)|i (can(no|')t|won't|will not|must decline|do not feel comfortable)"
    r"|as an ai\b|i apologi[sz]e)",
    re.IGNORECASE,
)


def outcome_of(answer: ComparedAnswer, prompt_tokens: int) -> RequestOutcome:
    count, tpot_s = len(answer.token_ids), None
    if count > 1 and answer.first_s is not None:
        tpot_s = (answer.total_s - answer.first_s) / (count - 1)
    return RequestOutcome(
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


def is_refusal(text: str, finish_reason: str | None = None) -> bool:
    """Whether an answer declines to answer: its beginning says so in English, or moderation ended it."""
    return finish_reason == "content_filter" or _REFUSAL.search(text[:_REFUSAL_CHARS].replace("’", "'")) is not None
