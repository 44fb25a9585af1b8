"""`/v1/organization/budgets`: what an organisation and its projects may spend."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from kvarn.gateway.dependencies import ADMINISTRATION, AdminContext, AdminDep, json_body
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.query import OrderedOldestFirstQuery, list_answer
from kvarn.metering.prices import BILLIONTHS, billionths
from kvarn.store.models import Budget
from kvarn.store.repositories.usage import budgets
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.budgets import BudgetCreate, BudgetObject, BudgetUpdate

router = APIRouter(
    prefix="/v1/organization/budgets", tags=["organization"], route_class=JsonRoute, dependencies=ADMINISTRATION
)


@router.get("", summary="List budgets")
async def list_budgets(admin: AdminDep, query: Annotated[OrderedOldestFirstQuery, Query()]) -> ListObject[BudgetObject]:
    """The organisation's budgets and those of its projects, oldest first unless `order` is `desc`."""
    async with admin.reading() as session:
        page = await budgets.list_budgets(session, admin.organization_id, query.cursor)
        rules = [budgets.rule_of(each) for each in page.items]
        spent = await budgets.spent(session, rules, admin.gateway.store.now())
    return list_answer(page, lambda budget: _describe(budget, spent[budget.id]))


@router.post("", summary="Create a budget")
async def create_budget(admin: AdminDep, body: Annotated[BudgetCreate, json_body(BudgetCreate)]) -> BudgetObject:
    """A budget of the organisation, or of one of its projects. It holds for requests from now on, at every gateway
    within `metering.budget_refresh_s`; what was spent before in the period counts."""
    hard, soft = (_stored(body.unit, name, getattr(body, name)) for name in ("hard_limit", "soft_limit"))
    currency = admin.gateway.config.metering.currency if body.unit == "cost" else None
    async with admin.audited_change() as change:
        budget = await budgets.add_budget(
            change, admin.organization_id, body.project_id, body.unit, currency, body.period, hard, soft
        )
    return await _with_spent(admin, budget)


@router.get("/{budget_id}", summary="Retrieve a budget")
async def get_budget(admin: AdminDep, budget_id: str) -> BudgetObject:
    """One budget, with what has been spent of it."""
    async with admin.reading() as session:
        budget = await budgets.find_budget(session, admin.organization_id, budget_id)
    return await _with_spent(admin, budget)


@router.post("/{budget_id}", summary="Modify a budget")
async def modify_budget(
    admin: AdminDep, budget_id: str, body: Annotated[BudgetUpdate, json_body(BudgetUpdate)]
) -> BudgetObject:
    """Set or take away its limits."""
    async with admin.audited_change() as change:
        budget = await budgets.find_budget(change.session, admin.organization_id, budget_id)
        changes = {name: _stored(budget.unit, name, getattr(body, name)) for name in sorted(body.model_fields_set)}
        budgets.change_budget(change, budget, changes)
    return await _with_spent(admin, budget)


@router.delete("/{budget_id}", summary="Delete a budget")
async def delete_budget(admin: AdminDep, budget_id: str) -> DeletedObject:
    """Its limits hold no longer."""
    async with admin.audited_change() as change:
        budget = await budgets.find_budget(change.session, admin.organization_id, budget_id)
        await budgets.delete_budget(change, budget)
    return DeletedObject(id=budget_id, object="organization.budget.deleted")


def _stored(unit: str, name: str, amount: float | None) -> int | None:
    """A limit as it is stored: tokens, or billionths of the currency's unit."""
    if amount is None:
        return None
    if unit == "cost":
        stored = billionths(amount)
        if amount and not stored:  # nothing may be spent is what 0 says
            raise invalid_request(f"{name!r} is less than a billionth: 0 allows nothing, null everything.", name)
        return stored
    if amount != int(amount):
        raise invalid_request(f"{name!r} must be a whole number of tokens.", name)
    return int(amount)


async def _with_spent(admin: AdminContext, budget: Budget) -> BudgetObject:
    async with admin.reading() as session:
        spent = await budgets.spent(session, [budgets.rule_of(budget)], admin.gateway.store.now())
    return _describe(budget, spent[budget.id])


def _describe(budget: Budget, spent: int) -> BudgetObject:
    def shown(amount: int) -> float:
        return amount / BILLIONTHS if budget.unit == "cost" else amount

    return BudgetObject(
        id=budget.id,
        created_at=budget.created_at,
        project_id=None if budget.holder_id == budget.organization_id else budget.holder_id,
        unit=budget.unit,
        currency=budget.currency,
        period=budget.period,
        hard_limit=None if budget.hard_limit is None else shown(budget.hard_limit),
        soft_limit=None if budget.soft_limit is None else shown(budget.soft_limit),
        spent=shown(spent),
        alerted_period=budget.alerted_period,
    )
