"""`/v1/organization/budgets`: what an organisation and its projects may spend."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.admin_context import AdminContext, admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.query import check_query
from kvarn.metering.prices import BILLIONTHS, billionths
from kvarn.store.models import Budget
from kvarn.store.repositories.usage import budgets
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.lists import ListObject
from kvarn.wire.openai.organization.budgets import BudgetCreate, BudgetDeleted, BudgetObject, BudgetUpdate

router = APIRouter(prefix="/v1/organization/budgets", tags=["organization"])

_LIST = ListQuery(ascending=True)


@router.get("", summary="List budgets", openapi_extra=_LIST.described)
@shapes(ListObject[BudgetObject])
async def list_budgets(request: Request) -> Response:
    """The organisation's budgets and those of its projects, oldest first."""
    admin = admin_context(request)
    cursor = _LIST.read(request)
    async with admin.reading() as session:
        page = await budgets.list_budgets(session, admin.organization_id, cursor)
        spent = await budgets.spent(session, [budgets.rule_of(each) for each in page.items], admin.gateway.store.now())
    return json_response(list_answer(page, lambda budget: _describe(budget, spent[budget.id])))


@router.post("", summary="Create a budget")
@shapes(BudgetObject, BudgetCreate)
async def create_budget(request: Request) -> Response:
    """A budget of the organisation, or of one of its projects. It holds for requests from now on, at every gateway
    within `metering.budget_refresh_s`; what was spent before in the period counts."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, BudgetCreate)
    limits = [_stored(asked.unit, name, getattr(asked, name)) for name in ("hard_limit", "soft_limit")]
    currency = admin.gateway.config.metering.currency if asked.unit == "cost" else None
    async with admin.audited_change() as change:
        budget = await budgets.add_budget(
            change, admin.organization_id, asked.project_id, asked.unit, currency, asked.period, limits[0], limits[1]
        )
    return json_response(await _with_spent(admin, budget))


@router.get("/{budget_id}", summary="Retrieve a budget")
@shapes(BudgetObject)
async def get_budget(request: Request, budget_id: str) -> Response:
    """One budget, with what has been spent of it."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        budget = await budgets.find_budget(session, admin.organization_id, budget_id)
    return json_response(await _with_spent(admin, budget))


@router.post("/{budget_id}", summary="Modify a budget")
@shapes(BudgetObject, BudgetUpdate)
async def modify_budget(request: Request, budget_id: str) -> Response:
    """Set or take away its limits."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, BudgetUpdate)
    async with admin.audited_change() as change:
        budget = await budgets.find_budget(change.session, admin.organization_id, budget_id)
        changes = {name: _stored(budget.unit, name, getattr(asked, name)) for name in sorted(asked.model_fields_set)}
        budgets.change_budget(change, budget, changes)
    return json_response(await _with_spent(admin, budget))


@router.delete("/{budget_id}", summary="Delete a budget")
@shapes(BudgetDeleted)
async def delete_budget(request: Request, budget_id: str) -> Response:
    """Its limits hold no longer."""
    admin = admin_context(request)
    check_query(request)
    async with admin.audited_change() as change:
        budget = await budgets.find_budget(change.session, admin.organization_id, budget_id)
        await budgets.delete_budget(change, budget)
    return json_response(BudgetDeleted(id=budget_id))


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
