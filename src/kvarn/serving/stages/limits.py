"""Requests and tokens per minute, and how many run at once."""

from __future__ import annotations

import math
from functools import partial

from kvarn.config.platform import LimitsConfig
from kvarn.limits.estimate import OutputEstimates
from kvarn.limits.limiter import ActiveReservation, Limiter
from kvarn.limits.rules import limits_of
from kvarn.limits.types import MAX_NUMBER, Decision, Kind, Limit, LimitsAwayError, Reservation
from kvarn.observe.limits import LimitMetrics
from kvarn.serving.pipeline import Outcome, Settle, Work
from kvarn.serving.stages.limit_refusals import rate_headers, refusal, refused_limit
from kvarn.wire.openai.errors import unavailable


class LimitsStage:
    """Takes the request and its tokens from every limit it is under, all or none, and settles them when it is over.

    Args:
        limiter: Keeps the counts; started and stopped by the caller.
        config: The server's defaults.
        metrics: Where refusals and the quality of estimates are counted.
    """

    def __init__(self, limiter: Limiter, config: LimitsConfig, metrics: LimitMetrics) -> None:
        self._limiter = limiter
        self._config = config
        self._metrics = metrics
        self._estimates = OutputEstimates(config.output_quantile, config.output_estimate)

    async def enter(self, work: Work) -> Settle | None:
        """Take the work in; its answer says in headers what is left.

        Raises:
            ApiError: 429 with the seconds to wait; 400 for what asks for more than a limit ever allows; 503 where Redis
                is away and the configuration says `closed`.
        """
        limits = limits_of(work.principal, work.model, self._config)
        if not limits:
            return None
        expected = self._expected_output(work)
        reservation = Reservation(work.id, work.principal.organization_id, limits, _reservation(work, expected, limits))
        try:
            taken = await self._limiter.take(reservation, used=lambda: _used(work))
        except LimitsAwayError:
            self._metrics.limited.labels(work.model, "away").inc()
            message = "The limits of this server cannot be checked at the moment. Try again."
            raise unavailable(message, "limits_unavailable") from None
        decision = taken.decision if isinstance(taken, ActiveReservation) else taken
        work.headers.update(rate_headers(decision))
        if isinstance(taken, Decision):
            self._metrics.limited.labels(work.model, str(refused_limit(taken)[0].kind)).inc()
            raise refusal(taken, work)
        return partial(self._settle, taken, expected)

    async def _settle(self, reserved: ActiveReservation, expected: int, work: Work) -> None:
        """Give back what was not used, or charge what was used beyond the reservation; learn from it."""
        undone = work.outcome is Outcome.FAILED and not work.usage.completion_tokens
        used = 0 if undone else _used(work)
        reserved.settle(used, whole=undone)
        self._metrics.reserved.labels(work.model).inc(reserved.reservation.tokens)
        self._metrics.used.labels(work.model).inc(used)
        if work.outcome is Outcome.FINISHED and not work.output_bounded:
            written = work.usage.completion_tokens
            self._metrics.estimate_ratio.labels(work.model).observe(written / max(1, expected))
            each = math.ceil(written / work.sequences)
            self._estimates.observe(work.principal.organization_id, work.model, each)

    def _expected_output(self, work: Work) -> int:
        if work.output_bounded:
            return work.max_output_tokens
        each = self._estimates.expect(work.principal.organization_id, work.model)
        return min(each * work.sequences, work.max_output_tokens)


def _used(work: Work) -> int:
    """Tokens so far. Whose client left pays for the whole prompt: leaving early shall not be the cheaper way to ask."""
    prompt = work.prompt_tokens if work.outcome is Outcome.ABORTED else work.usage.prompt_tokens
    return prompt + work.usage.completion_tokens


def _reservation(work: Work, expected: int, limits: tuple[Limit, ...]) -> int:
    """Tokens to reserve. What is only expected never makes a request too large for a limit that its prompt fits."""
    tokens = min(work.prompt_tokens + expected, MAX_NUMBER)
    if work.output_bounded:
        return tokens
    largest = min((limit.maximum for limit in limits if limit.kind is Kind.TOKENS), default=tokens)
    return max(work.prompt_tokens, min(tokens, largest))
