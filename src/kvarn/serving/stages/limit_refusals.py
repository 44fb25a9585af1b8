"""What clients see of their limits: headers on every answer, and why a request was refused."""

from __future__ import annotations

import math

from kvarn.limits.types import NEVER, Decision, Kind, Limit, Usage
from kvarn.serving.pipeline import Work
from kvarn.wire.openai.errors import ApiError

_WORDS = {
    Kind.REQUESTS: "requests per minute (RPM)",
    Kind.TOKENS: "tokens per minute (TPM)",
    Kind.CONCURRENCY: "requests running at once",
}


def rate_headers(decision: Decision) -> dict[str, str]:
    """`x-ratelimit-...`, as OpenAI sends them: of all limits on requests the one with the least left, and of those on
    tokens."""
    headers: dict[str, str] = {}
    for kind in (Kind.REQUESTS, Kind.TOKENS):
        limits = [(limit, usage) for limit, usage in decision.items() if limit.kind is kind]
        if limits:
            limit, usage = min(limits, key=lambda each: (each[0].maximum - each[1].used, each[0].maximum))
            headers[f"x-ratelimit-limit-{kind}"] = str(limit.maximum)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, limit.maximum - usage.used))
            headers[f"x-ratelimit-reset-{kind}"] = duration(usage.reset_ms)
    return headers


def refused_limit(decision: Decision) -> tuple[Limit, Usage]:
    """Of the limits that had no room, the one to tell of: it has none for longest."""
    refused = [(limit, usage) for limit, usage in decision.items() if usage.wait_ms]
    return max(refused, key=lambda each: math.inf if each[1].wait_ms == NEVER else each[1].wait_ms)


def refusal(decision: Decision, work: Work) -> ApiError:
    """The error for a reservation that was not admitted."""
    limit, usage = refused_limit(decision)
    requested = decision.reservation.amount(limit)
    whose = f"{limit.scope} {limit.holder} on {_WORDS[limit.kind]} of {limit.model!r}"
    kind = "tokens" if limit.kind is Kind.TOKENS else "requests"
    if usage.wait_ms == NEVER:
        return _too_large(whose, limit, requested, work)
    seconds = math.ceil(usage.wait_ms / 1000)
    message = (
        f"Rate limit reached for {whose}: limit {limit.maximum}, used {usage.used}, requested {requested}. "
        f"Try again in {duration(seconds * 1000)}."
    )
    return ApiError(429, message, type=kind, code="rate_limit_exceeded", headers={"retry-after": str(seconds)})


def duration(milliseconds: int) -> str:
    """A length of time as OpenAI's headers write it: `0s`, `12ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:g}s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _too_large(whose: str, limit: Limit, requested: int, work: Work) -> ApiError:
    """A request that waiting does not help."""
    message = f"The request is larger than the limit for {whose}: limit {limit.maximum}, requested {requested}."
    if limit.kind is Kind.TOKENS and work.output_bounded and work.max_output_tokens:
        advice = f" {work.prompt_tokens} of these are the prompt's, the others are reserved for the answer: lower "
        return ApiError(400, f"{message}{advice}'max_tokens'.", code="request_exceeds_limit", param="max_tokens")
    advice = " Shorten the prompt." if limit.kind is Kind.TOKENS else " It takes no requests."
    return ApiError(400, message + advice, code="request_exceeds_limit")
