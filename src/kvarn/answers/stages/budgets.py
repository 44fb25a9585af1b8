"""Budgets: a turn is refused where its organisation or project has spent them."""

from __future__ import annotations

from kvarn.answers.turn import Turn
from kvarn.clock import SYSTEM_CLOCK
from kvarn.limits.types import LimitsAwayError
from kvarn.metering.budgets import BudgetSpentError
from kvarn.metering.prices import BILLIONTHS
from kvarn.metering.service import Metering
from kvarn.store.models import Budget
from kvarn.wire.openai.errors import ApiError, unavailable

_RETRY_S = 1
"""After which requests in flight may have ended, or what ended may be on the ledger."""


class BudgetStage:
    """Reserves the most that a turn can come to; comes early, for it costs next to nothing."""

    name = "budgets"

    def __init__(self, metering: Metering) -> None:
        self.metering = metering

    async def enter(self, turn: Turn) -> None:
        """Reserve.

        Raises:
            ApiError: 429 `insufficient_quota` where a hard limit is reached or would be passed, 429 `budget_reserved`
                where requests in flight or not entered yet may reach it, 503 where Redis is away and the configuration
                says `closed`.
        """
        metering, principal, now = self.metering, turn.record.principal, SYSTEM_CLOCK.time()
        holders = (principal.organization_id, principal.project_id)
        max_cost = metering.prices.max_cost(turn.model, now, prompt=turn.prompt_tokens, output=turn.max_output_tokens)
        tokens = turn.prompt_tokens + turn.max_output_tokens
        try:
            held = await metering.reservations.reserve(turn.id, holders, tokens, max_cost, now)
        except BudgetSpentError as error:
            metering.metrics.budget_refusals.labels(error.rule.unit).inc()
            raise _refusal(error) from None
        except LimitsAwayError:
            message = "The budgets of this server cannot be checked at the moment. Try again."
            raise unavailable(message, "budgets_unavailable") from None
        if held is not None:  # what it came to is in the ledger when this is released: the ledger is settled first
            turn.closing.callback(metering.reservations.release, held)


def _refusal(error: BudgetSpentError) -> ApiError:
    rule = error.rule
    whose = "organization" if rule.holder_id == rule.organization_id else "project"
    when = {"day": "for today (UTC)", "month": "for this month (UTC)", "total": "for good"}[rule.period]
    what = "tokens" if rule.unit == "tokens" else "money"
    budget = f"budget of {what} {when}"
    if not error.left:
        return _insufficient(f"Your {whose} has spent its {budget}. An administrator of the organization may raise it.")
    if error.requested > error.left:
        left, requested = _amount(rule, error.left), _amount(rule, error.requested)
        return _insufficient(
            f"Your {whose} has {left} left of its {budget}, and the request may come to {requested}: allow it fewer "
            "output tokens. An administrator of the organization may raise the budget."
        )
    message = (
        f"The requests in flight of your {whose}, or what has just ended, may come to what is left of its {budget}. "
        "Try again in a moment."
    )
    headers = {"retry-after": str(_RETRY_S)}
    return ApiError(429, message, type="rate_limit_error", code="budget_reserved", headers=headers)


def _insufficient(message: str) -> ApiError:
    # OpenAI's clients try a 429 again unless the answer says not to.
    headers = {"x-should-retry": "false"}
    return ApiError(429, message, type="insufficient_quota", code="insufficient_quota", headers=headers)


def _amount(rule: Budget, amount: int) -> str:
    return f"{amount} tokens" if rule.unit == "tokens" else f"{amount / BILLIONTHS:.9g} {rule.currency}"
