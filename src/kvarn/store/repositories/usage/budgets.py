"""Budgets, and what has been spent of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.ids import new_id
from kvarn.store.ledger import period_name
from kvarn.store.models import Budget, UsagePeriod
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange
from kvarn.store.repositories.tenants.projects import get_active_project


async def read_budgets(store: Store) -> tuple[list[Budget], dict[str, int]]:
    """All budgets of all organisations, and by their ids what was spent in their present periods."""
    now = store.now()
    async with store.reading() as session:
        found = list(await session.scalars(select(Budget)))
        return found, await spent(session, found, now) if found else {}


async def spent(session: AsyncSession, rules: Sequence[Budget], now: float) -> dict[str, int]:
    """Amounts that the ledger has spent of these budgets in the periods in which `now` lies."""
    periods = {rule.period: period_name(rule.period, now) for rule in rules}
    organizations = {rule.organization_id for rule in rules}
    query = select(UsagePeriod).where(UsagePeriod.period.in_(periods.values()))
    if len(organizations) == 1:
        query = query.where(UsagePeriod.organization_id.in_(organizations))
    else:
        query = query.where(UsagePeriod.organization_id.in_(select(Budget.organization_id)))
    totals: dict[tuple[str, str], list[UsagePeriod]] = {}
    for row in await session.scalars(query):
        for holder in (row.organization_id, row.project_id):
            totals.setdefault((row.period, holder), []).append(row)
    return {
        rule.id: sum(
            rule.amount(row.tokens, row.cost)
            for row in totals.get((periods[rule.period], rule.holder_id), ())
            if rule.currency in (None, row.currency)
        )
        for rule in rules
    }


async def note_alert(store: Store, rule: Budget, period: str) -> bool:
    """Note that the soft limit was passed in a period, in the budget and in the audit log; False where another gateway
    has."""
    async with store.transaction() as session:
        noted = await session.execute(
            update(Budget)
            .where(Budget.id == rule.id, Budget.alerted_period.is_distinct_from(period))
            .values(alerted_period=period)
            .returning(Budget.id)
        )
        if noted.scalar_one_or_none() is None:
            return False
        AuditedChange(session, Actor("ledger"), int(store.now())).record(
            "budget.alerted",
            rule.organization_id,
            rule.id,
            project_id=rule.project_id,
            period=period,
            unit=rule.unit,
            soft_limit=rule.soft_limit,
        )
    return True


async def list_budgets(session: AsyncSession, organization_id: str, cursor: Cursor) -> Page[Budget]:
    query = select(Budget).where(Budget.organization_id == organization_id)
    return await read_page(session, query, cursor, (Budget.created_at, Budget.id))


async def find_budget(session: AsyncSession, organization_id: str, budget_id: str) -> Budget:
    query = select(Budget).where(Budget.id == budget_id, Budget.organization_id == organization_id)
    return await find_one(session, query, f"There is no budget {budget_id[:80]!r}.")


async def add_budget(
    change: AuditedChange, organization_id: str, project_id: str | None, fields: Mapping[str, Any]
) -> Budget:
    """A new budget of an organisation or one of its projects. `fields` are those of `Budget`: `unit`, `currency` (of
    one of money), `period`, `hard_limit`, `soft_limit`."""
    if project_id is not None:
        await get_active_project(change, organization_id, project_id)
    holder_id = project_id or organization_id
    budget = Budget(
        id=new_id("budget-"), organization_id=organization_id, holder_id=holder_id, created_at=change.now, **fields
    )
    change.session.add(budget)
    told = {name: value for name, value in fields.items() if name != "currency"}
    change.record("budget.created", organization_id, budget.id, project_id=project_id, **told)
    return budget


def change_budget(change: AuditedChange, budget: Budget, limits: Mapping[str, int | None]) -> None:
    """Set `hard_limit` and `soft_limit` where given. When a new soft limit is passed, there is an alert again."""
    for name, amount in limits.items():
        setattr(budget, name, amount)
    if "soft_limit" in limits:
        budget.alerted_period = None
    change.record("budget.updated", budget.organization_id, budget.id, project_id=budget.project_id, **limits)


async def delete_budget(change: AuditedChange, budget: Budget) -> None:
    await change.session.delete(budget)
    change.record("budget.deleted", budget.organization_id, budget.id, project_id=budget.project_id)
