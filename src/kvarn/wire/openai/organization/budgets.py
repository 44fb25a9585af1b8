"""Budgets: `/v1/organization/budgets`. Kvarn's own, in the manner of OpenAI's organisation endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import Field, model_validator

from kvarn.wire.openai.common import RequestModel, disagreement
from kvarn.wire.openai.organization.requests import ObjectId

MAX_AMOUNT = 9_000_000_000
"""Money in a limit at most: billionths of it are 64-bit integers."""

Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT)]


class BudgetCreate(RequestModel):
    """A new budget: money of `metering.currency`, or tokens."""

    unit: Literal["cost", "tokens"]
    period: Literal["day", "month", "total"]
    """Days and months are those of UTC."""
    project_id: ObjectId | None = None
    """Whose requests count. Default: those of the whole organisation."""
    hard_limit: Amount | None = None
    """Requests are refused from here on."""
    soft_limit: Amount | None = None
    """An alert is given once in a period."""

    @model_validator(mode="after")
    def _has_a_limit(self) -> BudgetCreate:
        if self.hard_limit is None and self.soft_limit is None:
            raise disagreement("Give 'hard_limit', 'soft_limit' or both.", "hard_limit")
        return self


class BudgetUpdate(RequestModel):
    """New limits; null takes one away, one that is not given stays."""

    hard_limit: Amount | None = None
    soft_limit: Amount | None = None


class BudgetObject(msgspec.Struct, frozen=True, kw_only=True):
    """A budget, and what has been spent of it in the present period."""

    object: str = "organization.budget"
    id: str
    created_at: int
    project_id: str | None
    unit: str
    currency: str | None
    period: str
    hard_limit: float | None
    soft_limit: float | None
    spent: float
    alerted_period: str | None
    """The period for which the alert of the soft limit has been given last, such as `2026-11`."""
