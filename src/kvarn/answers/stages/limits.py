"""Requests and tokens per minute, requests running at once, and budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvarn.admission.answer_lengths import AnswerLengths
from kvarn.answers.turn import Outcome, Turn
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import LimitsConfig
from kvarn.limits.limiter import ActiveReservation, Limiter
from kvarn.limits.rules import limits_of
from kvarn.limits.types import MAX_NUMBER, NEVER, Decision, Kind, Limit, LimitsAwayError, Reservation, Usage
from kvarn.metering.prices import BILLIONTHS, PriceBook
from kvarn.observe.limits import LimitMetrics
from kvarn.store.models import Budget
from kvarn.wire.openai.errors import ApiError, unavailable

_WORDS = {
    Kind.REQUESTS: "requests per minute (RPM)",
    Kind.TOKENS: "tokens per minute (TPM)",
    Kind.CONCURRENCY: "requests running at once",
}
_PERIODS = {"day": "for today (UTC)", "month": "for this month (UTC)", "total": "for good"}

LimitUsages = list[tuple[Limit, Usage]]


class LimitsStage:
    """Takes the request and its tokens from every limit and budget it is under, all or none, and settles them when it
    is over.

    Args:
        limiter: Keeps the counts; started and stopped by the caller.
        prices: For budgets of money.
        config: The server's defaults.
        metrics: Where refusals and the quality of estimates are counted.
    """

    name = "limits"

    def __init__(self, limiter: Limiter, prices: PriceBook, config: LimitsConfig, metrics: LimitMetrics) -> None:
        self.limiter = limiter
        self._prices = prices
        self._config = config
        self._metrics = metrics
        self._lengths = AnswerLengths()
        """Length model of answers without a bound."""

    async def enter(self, turn: Turn) -> None:
        """Reserve what the turn may use; the headers of its answer say what is left.

        Raises:
            ApiError: Of limits, 429 with the seconds to wait, or 400 for more than a limit ever allows. Of budgets, 429
                `insufficient_quota` where a hard limit is reached or would be passed, or 429 `budget_reserved` where
                requests in flight or not entered yet may reach it. 503 where Redis is away and the configuration says
                `closed`.
        """
        principal = turn.record.principal
        rates = limits_of(principal, turn.model, self._config)
        rules, budgets = self._budgets(turn)
        if not rates and not budgets:
            return
        expected = self._expected_output(turn)
        tokens = _tokens_to_reserve(turn, expected, rates)
        reservation = Reservation(turn.id, principal.organization_id, (*budgets, *rates), tokens)
        try:
            taken = await self.limiter.reserve(reservation, used=lambda: _used(turn))
        except LimitsAwayError:
            self._metrics.limited.labels(turn.model, "away").inc()
            what = "budgets" if budgets else "limits"
            message = f"The {what} of this server cannot be checked at the moment. Try again."
            raise unavailable(message, f"{what}_unavailable") from None
        decision = taken.decision if isinstance(taken, ActiveReservation) else taken
        usages = list(zip(reservation.limits, decision.usages, strict=True))
        turn.record.reply.headers.update(_rate_headers(usages))
        if isinstance(taken, Decision):
            raise self._refusal(rules, usages, turn, tokens)
        turn.closing.callback(self._settle, taken, expected, turn)

    def _budgets(self, turn: Turn) -> tuple[Sequence[Budget], tuple[Limit, ...]]:
        principal, now = turn.record.principal, SYSTEM_CLOCK.time()
        max_cost = self._prices.max_cost(turn.model, now, prompt=turn.prompt_tokens, output=turn.max_output_tokens)
        holders = principal.organization_id, principal.project_id
        return self.limiter.budgets.limits(holders, turn.prompt_tokens + turn.max_output_tokens, max_cost, now)

    def _refusal(self, rules: Sequence[Budget], usages: LimitUsages, turn: Turn, tokens: int) -> ApiError:
        """The error for the first budget without room, or for the limit without room for longest."""
        for rule, (limit, usage) in zip(rules, usages, strict=False):
            if usage.wait_ms:
                self._metrics.budget_refusals.labels(rule.unit).inc()
                return _budget_refusal(rule, limit, usage)
        refused = [(limit, usage) for limit, usage in usages if usage.wait_ms]
        limit, usage = max(refused, key=lambda each: math.inf if each[1].wait_ms == NEVER else each[1].wait_ms)
        self._metrics.limited.labels(turn.model, limit.kind.value).inc()
        return _rate_refusal(limit, usage, turn, tokens if limit.kind is Kind.TOKENS else 1)

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
    """Tokens so far. A client that left pays for the whole prompt: to leave early is not the cheaper way to ask."""
    prompt = turn.prompt_tokens if turn.outcome is Outcome.ABORTED else turn.usage.prompt_tokens
    return prompt + turn.usage.completion_tokens


def _tokens_to_reserve(turn: Turn, expected: int, limits: tuple[Limit, ...]) -> int:
    """An expected length never makes a request too large for a limit that its prompt fits."""
    tokens = min(turn.prompt_tokens + expected, MAX_NUMBER)
    if turn.output_bounded:
        return tokens
    largest = min((limit.maximum for limit in limits if limit.kind is Kind.TOKENS), default=tokens)
    return max(turn.prompt_tokens, min(tokens, largest))


def _rate_headers(usages: LimitUsages) -> dict[str, str]:
    """`x-ratelimit-...`, as OpenAI sends them: of all limits on requests the one with the least left, and of those on
    tokens."""
    headers: dict[str, str] = {}
    for kind in (Kind.REQUESTS, Kind.TOKENS):
        limits = [(limit, usage) for limit, usage in usages if limit.kind is kind]
        if limits:
            limit, usage = min(limits, key=lambda each: (each[0].maximum - each[1].used, each[0].maximum))
            headers[f"x-ratelimit-limit-{kind}"] = str(limit.maximum)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, limit.maximum - usage.used))
            headers[f"x-ratelimit-reset-{kind}"] = _duration(usage.reset_ms)
    return headers


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


def _rate_refusal(limit: Limit, usage: Usage, turn: Turn, requested: int) -> ApiError:
    of_what = f"{limit.scope} {limit.holder} on {_WORDS[limit.kind]} of {limit.model!r}"
    if usage.wait_ms != NEVER:
        kind = "tokens" if limit.kind is Kind.TOKENS else "requests"
        seconds = math.ceil(usage.wait_ms / 1000)
        message = (
            f"Rate limit reached for {of_what}: limit {limit.maximum}, used {usage.used}, requested {requested}. "
            f"Try again in {_duration(seconds * 1000)}."
        )
        return ApiError(429, message, type=kind, code="rate_limit_exceeded", headers={"retry-after": str(seconds)})
    message = f"The request is larger than the limit for {of_what}: limit {limit.maximum}, requested {requested}."
    if limit.kind is Kind.TOKENS and turn.output_bounded and turn.max_output_tokens:
        advice = f" {turn.prompt_tokens} of these are the prompt's, the others are reserved for the answer: lower "
        return ApiError(400, f"{message}{advice}'max_tokens'.", code="request_exceeds_limit", param="max_tokens")
    advice = " Shorten the prompt." if limit.kind is Kind.TOKENS else " It takes no requests."
    return ApiError(400, message + advice, code="request_exceeds_limit")


def _budget_refusal(rule: Budget, limit: Limit, usage: Usage) -> ApiError:
    holder = "organization" if rule.project_id is None else "project"
    budget = f"budget of {'tokens' if rule.unit == 'tokens' else 'money'} {_PERIODS[rule.period]}"
    if usage.wait_ms != NEVER:
        message = (
            f"The requests in flight of your {holder}, or what has just ended, may come to what is left of its "
            f"{budget}. Try again in a moment."
        )
        headers = {"retry-after": str(math.ceil(usage.wait_ms / 1000))}
        return ApiError(429, message, type="rate_limit_error", code="budget_reserved", headers=headers)
    left = limit.maximum - usage.used
    message = f"Your {holder} has spent its {budget}. An administrator of the organization may raise it."
    if left > 0:
        message = (
            f"Your {holder} has {_amount(rule, left)} left of its {budget}, and the request may come to "
            f"{_amount(rule, limit.amount)}: allow it fewer output tokens. An administrator of the organization may "
            "raise the budget."
        )
    # OpenAI's clients try a 429 again unless the answer says not to.
    headers = {"x-should-retry": "false"}
    return ApiError(429, message, type="insufficient_quota", code="insufficient_quota", headers=headers)


def _amount(rule: Budget, amount: int) -> str:
    return f"{amount} tokens" if rule.unit == "tokens" else f"{amount / BILLIONTHS:.9g} {rule.currency}"
