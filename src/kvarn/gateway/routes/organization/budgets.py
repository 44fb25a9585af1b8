"""`/v1/organization/budgets`: what an organisation and its projects may spend."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.gateway.dependencies import ADMINISTRATION, AdminContext, AdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import OrderedOldestFirstQuery, described, whole_list
from kvarn.metering.prices import BILLIONTHS, billionths
from kvarn.store.models import Budget
from kvarn.store.repositories.usage import budgets
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import BudgetObject
from kvarn.wire.openai.organization.requests import BudgetCreate, BudgetUpdate

router = json_router("/v1/organization/budgets", "organization", ADMINISTRATION)


@router.get("", summary="List budgets")
async def list_budgets(admin: AdminDep, query: OrderedOldestFirstQuery) -> ListObject[BudgetObject]:
    """The organisation's budgets and those of its projects, oldest first unless `order` is `desc`."""
    page = await admin.read(budgets.list_budgets, query.cursor)
    return whole_list(await _described(admin, page.items), has_more=page.has_more)


@router.post("", summary="Create a budget")
async def create_budget(admin: AdminDep, body: BudgetCreate) -> BudgetObject:
    """A budget of the organisation, or of one of its projects. It holds for requests from now on, at every gateway
    within `metering.budget_refresh_s`; what was spent before in the period counts."""
    hard, soft = (_stored(body.unit, name, getattr(body, name)) for name in ("hard_limit", "soft_limit"))
    currency = admin.gateway.config.metering.currency if body.unit == "cost" else None
    fields = {"unit": body.unit, "currency": currency, "period": body.period, "hard_limit": hard, "soft_limit": soft}
    budget = await admin.change(budgets.add_budget, body.project_id, fields)
    return (await _described(admin, [budget]))[0]


@router.get("/{budget_id}", summary="Retrieve a budget")
async def get_budget(admin: AdminDep, budget_id: str) -> BudgetObject:
    """One budget, with what has been spent of it."""
    return (await _described(admin, [await admin.read(budgets.find_budget, budget_id)]))[0]


@router.post("/{budget_id}", summary="Modify a budget")
async def modify_budget(admin: AdminDep, budget_id: str, body: BudgetUpdate) -> BudgetObject:
    """Set or take away its limits."""
    async with admin.audited_change() as change:
        budget = await budgets.find_budget(change.session, admin.organization_id, budget_id)
        changes = {name: _stored(budget.unit, name, getattr(body, name)) for name in sorted(body.model_fields_set)}
        budgets.change_budget(change, budget, changes)
    return (await _described(admin, [budget]))[0]


@router.delete("/{budget_id}", summary="Delete a budget")
async def delete_budget(admin: AdminDep, budget_id: str) -> DeletedObject:
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
        if amount and not stored:  # 0 would allow nothing
            raise invalid_request(f"{name!r} is less than a billionth: 0 allows nothing, null everything.", name)
        return stored
    if amount != int(amount):
        raise invalid_request(f"{name!r} must be a whole number of tokens.", name)
    return int(amount)


async def _described(admin: AdminContext, found: Sequence[Budget]) -> list[BudgetObject]:
    async with admin.reading() as session:
        spent = await budgets.spent(session, found, admin.gateway.store.now())
    return [_describe(each, spent[each.id]) for each in found]


def _describe(budget: Budget, spent: int) -> BudgetObject:
    amounts = {"hard_limit": budget.hard_limit, "soft_limit": budget.soft_limit, "spent": spent}
    divisor = BILLIONTHS if budget.unit == "cost" else None
    shown = {name: each if each is None or divisor is None else each / divisor for name, each in amounts.items()}
    return described(BudgetObject, budget, **shown)
