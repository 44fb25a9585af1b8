"""Requests and tokens per minute, and requests at once, of organisations, projects and keys."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.ids import new_id
from kvarn.store.models import RateLimit
from kvarn.store.owner import LimitRule
from kvarn.store.repositories.queries import find_one
from kvarn.store.repositories.tenants.audited_changes import AuditedChange

LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")
"""Fields of a `RateLimit` that may be set; None: no limit."""


async def limit_rules_of(session: AsyncSession, holders: Collection[str]) -> tuple[LimitRule, ...]:
    query = select(RateLimit).where(RateLimit.holder_id.in_(holders)).order_by(RateLimit.holder_id, RateLimit.model)
    return tuple(
        LimitRule(row.holder_id, row.model, row.requests_per_minute, row.tokens_per_minute, row.concurrency)
        for row in await session.scalars(query)
    )


async def set_limit(
    change: AuditedChange,
    organization_id: str,
    holder_id: str,
    model: str,
    changes: dict[str, int | None],
    *,
    project_id: str | None = None,
) -> LimitRule:
    """Set some of the `LIMITS` of one holder for one model, or for each (`*`). The caller has made sure that the holder
    is the organisation's."""
    row = await change.session.scalar(_query(holder_id, model))
    if row is None:
        row = RateLimit(id=new_id("rl_"), organization_id=organization_id, holder_id=holder_id, model=model)
        change.session.add(row)
    for name in LIMITS:
        setattr(row, name, changes[name] if name in changes else getattr(row, name))
    detail = {"holder": holder_id, "model": model, **changes}
    change.record("rate_limit.updated", organization_id, row.id, project_id=project_id, changes_requested=detail)
    return LimitRule(holder_id, model, row.requests_per_minute, row.tokens_per_minute, row.concurrency)


async def drop_limit(
    change: AuditedChange, organization_id: str, holder_id: str, model: str, *, project_id: str | None = None
) -> None:
    row = await find_one(change.session, _query(holder_id, model), f"No such rate limit: {model!r}.")
    await change.session.delete(row)
    change.record("rate_limit.deleted", organization_id, row.id, project_id=project_id, holder=holder_id, model=model)


def _query(holder_id: str, model: str) -> Select[RateLimit]:
    return select(RateLimit).where(RateLimit.holder_id == holder_id, RateLimit.model == model)
