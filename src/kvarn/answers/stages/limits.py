"""Requests and tokens per minute, and how many run at once."""

from __future__ import annotations

import math

from kvarn.admission.answer_lengths import AnswerLengths
from kvarn.answers.turn import Outcome, Turn
from kvarn.config.platform import LimitsConfig
from kvarn.limits.limiter import ActiveReservation, Limiter
from kvarn.limits.rules import limits_of
from kvarn.limits.types import MAX_NUMBER, NEVER, Decision, Kind, Limit, LimitsAwayError, Reservation, Usage
from kvarn.observe.limits import LimitMetrics
from kvarn.wire.openai.errors import ApiError, unavailable

_WORDS = {
    Kind.REQUESTS: "requests per minute (RPM)",
    Kind.TOKENS: "tokens per minute (TPM)",
    Kind.CONCURRENCY: "requests running at once",
}


class LimitsStage:
    """Takes the request and its tokens from every limit it is under, all or none, and settles them when it is over.

    Args:
        limiter: Keeps the counts; started and stopped by the caller.
        config: The server's defaults.
        metrics: Where refusals and the quality of estimates are counted.
    """

    name = "limits"

    def __init__(self, limiter: Limiter, config: LimitsConfig, metrics: LimitMetrics) -> None:
        self._limiter = limiter
        self._config = config
        self._metrics = metrics
        self._lengths = AnswerLengths()
        """Of answers without a bound."""

    async def enter(self, turn: Turn) -> None:
        """Take the work in; its answer says in headers what is left.

        Raises:
            ApiError: 429 with the seconds to wait; 400 for what asks for more than a limit ever allows; 503 where Redis
                is away and the configuration says `closed`.
        """
        limits = limits_of(turn.record.principal, turn.model, self._config)
        if not limits:
            return
        expected = self._expected_output(turn)
        reservation = Reservation(
            turn.id, turn.record.principal.organization_id, limits, _reservation(turn, expected, limits)
        )
        try:
            taken = await self._limiter.take(reservation, used=lambda: _used(turn))
        except LimitsAwayError:
            self._metrics.limited.labels(turn.model, "away").inc()
            message = "The limits of this server cannot be checked at the moment. Try again."
            raise unavailable(message, "limits_unavailable") from None
        decision = taken.decision if isinstance(taken, ActiveReservation) else taken
        turn.record.reply.headers.update(_rate_headers(decision))
        if isinstance(taken, Decision):
            self._metrics.limited.labels(turn.model, str(_refused_limit(taken)[0].kind)).inc()
            raise _refusal(taken, turn)
        turn.closing.callback(self._settle, taken, expected, turn)

    def _settle(self, reserved: ActiveReservation, expected: int, turn: Turn) -> None:
        """Give back what was not used, or charge what was used beyond the reservation; learn from it."""
        undone = turn.outcome is Outcome.FAILED and not turn.usage.completion_tokens
        used = 0 if undone else _used(turn)
        reserved.settle(used, whole=undone)
        self._metrics.reserved.labels(turn.model).inc(reserved.reservation.tokens)
        self._metrics.used.labels(turn.model).inc(used)
        if turn.outcome is Outcome.FINISHED and not turn.output_bounded:
            written = turn.usage.completion_tokens
            self._metrics.estimate_ratio.labels(turn.model).observe(written / max(1, expected))
            self._lengths.learn(turn.model, turn.record.principal.organization_id, written / turn.sequences)

    def _expected_output(self, turn: Turn) -> int:
        if turn.output_bounded:
            return turn.max_output_tokens
        tenant = turn.record.principal.organization_id
        each = self._lengths.quantile(turn.model, tenant, self._config.output_quantile)
        if each is None:
            each = self._config.output_estimate
        return min(each * turn.sequences, turn.max_output_tokens)


def _used(turn: Turn) -> int:
    """Tokens so far. Whose client left pays for the whole prompt: leaving early shall not be the cheaper way to ask."""
    prompt = turn.prompt_tokens if turn.outcome is Outcome.ABORTED else turn.usage.prompt_tokens
    return prompt + turn.usage.completion_tokens


def _reservation(turn: Turn, expected: int, limits: tuple[Limit, ...]) -> int:
    """Tokens to reserve. What is only expected never makes a request too large for a limit that its prompt fits."""
    tokens = min(turn.prompt_tokens + expected, MAX_NUMBER)
    if turn.output_bounded:
        return tokens
    largest = min((limit.maximum for limit in limits if limit.kind is Kind.TOKENS), default=tokens)
    return max(turn.prompt_tokens, min(tokens, largest))


def _rate_headers(decision: Decision) -> dict[str, str]:
    """`x-ratelimit-...`, as OpenAI sends them: of all limits on requests the one with the least left, and of those on
    tokens."""
    headers: dict[str, str] = {}
    for kind in (Kind.REQUESTS, Kind.TOKENS):
        limits = [(limit, usage) for limit, usage in decision.items() if limit.kind is kind]
        if limits:
            limit, usage = min(limits, key=lambda each: (each[0].maximum - each[1].used, each[0].maximum))
            headers[f"x-ratelimit-limit-{kind}"] = str(limit.maximum)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, limit.maximum - usage.used))
            headers[f"x-ratelimit-reset-{kind}"] = _duration(usage.reset_ms)
    return headers


def _refused_limit(decision: Decision) -> tuple[Limit, Usage]:
    """The limit to name in a refusal: the one without room for longest."""
    refused = [(limit, usage) for limit, usage in decision.items() if usage.wait_ms]
    return max(refused, key=lambda each: math.inf if each[1].wait_ms == NEVER else each[1].wait_ms)


def _refusal(decision: Decision, turn: Turn) -> ApiError:
    """The error for a reservation that was not admitted."""
    limit, usage = _refused_limit(decision)
    requested = decision.reservation.amount(limit)
    whose = f"{limit.scope} {limit.holder} on {_WORDS[limit.kind]} of {limit.model!r}"
    kind = "tokens" if limit.kind is Kind.TOKENS else "requests"
    if usage.wait_ms == NEVER:
        return _too_large(whose, limit, requested, turn)
    seconds = math.ceil(usage.wait_ms / 1000)
    message = (
        f"Rate limit reached for {whose}: limit {limit.maximum}, used {usage.used}, requested {requested}. "
        f"Try again in {_duration(seconds * 1000)}."
    )
    return ApiError(429, message, type=kind, code="rate_limit_exceeded", headers={"retry-after": str(seconds)})


def _duration(milliseconds: int) -> str:
    """A length of time as OpenAI's headers write it: `0s`, `12ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:g}s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _too_large(whose: str, limit: Limit, requested: int, turn: Turn) -> ApiError:
    """A request that waiting does not help."""
    message = f"The request is larger than the limit for {whose}: limit {limit.maximum}, requested {requested}."
    if limit.kind is Kind.TOKENS and turn.output_bounded and turn.max_output_tokens:
        advice = f" {turn.prompt_tokens} of these are the prompt's, the others are reserved for the answer: lower "
        return ApiError(400, f"{message}{advice}'max_tokens'.", code="request_exceeds_limit", param="max_tokens")
    advice = " Shorten the prompt." if limit.kind is Kind.TOKENS else " It takes no requests."
    return ApiError(400, message + advice, code="request_exceeds_limit")
