"""Refuses work of those who have spent their budget, before the engine is asked."""

from __future__ import annotations

import time

from kvarn.gateway.work import Work
from kvarn.metering.budgets import BudgetSpentError, Reservation
from kvarn.metering.service import Metering
from kvarn.store.ledger import BudgetRule
from kvarn.wire.openai.errors import ApiError


class BudgetStage:
    """Reserves the most that a request can come to; comes early, for it costs next to nothing."""

    def __init__(self, metering: Metering) -> None:
        self._metering = metering

    async def enter(self, work: Work) -> BudgetTicket | None:
        """Raises ApiError, 429 `insufficient_quota`, where a hard limit is reached."""
        metering, principal, now = self._metering, work.principal, time.time()
        holders = (principal.organization_id, principal.project_id)
        most = metering.prices.most(work.model, now, prompt=work.prompt_tokens, output=work.max_output_tokens)
        try:
            reserved = metering.budgets.reserve(holders, work.prompt_tokens + work.max_output_tokens, most, now)
        except BudgetSpentError as error:
            metering.metrics.budget_refusals.labels(error.rule.unit).inc()
            raise _insufficient_quota(error.rule) from None
        return None if reserved is None else BudgetTicket(metering, reserved)


class BudgetTicket:
    """What a request in flight has reserved."""

    def __init__(self, metering: Metering, reserved: Reservation) -> None:
        self._metering = metering
        self._reserved = reserved

    async def leave(self, work: Work) -> None:
        """What it came to is in the ledger by now: the ledger's ticket is left first."""
        self._metering.budgets.release(self._reserved)


def _insufficient_quota(rule: BudgetRule) -> ApiError:
    whose = "organization" if rule.holder_id == rule.organization_id else "project"
    when = {"day": "for today (UTC)", "month": "for this month (UTC)", "total": "for good"}[rule.period]
    what = "tokens" if rule.unit == "tokens" else "money"
    return ApiError(
        429,
        f"Your {whose} has spent its budget of {what} {when}. An administrator of the organization may raise it.",
        type="insufficient_quota",
        code="insufficient_quota",
        headers={"x-should-retry": "false"},  # OpenAI's clients try a 429 again unless they are told
    )
