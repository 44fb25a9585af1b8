"""Rate limits of a project, of one of its keys and, for platform administrators, of an organisation.

A limit's id is `rl-` and the model's name (`rl-*`: each model that has none of its own). A project has one for each
served model from the start, without any bound: so OpenAI's two operations, list and modify, are enough to set them.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.responses import Response

from kvarn.gateway.admin_context import AdminContext, admin_context, platform_admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.query import check_query
from kvarn.gateway.routes.organization.objects import (
    RATE_LIMIT_PREFIX,
    deleted_object,
    limit_changes,
    rate_limit_object,
)
from kvarn.gateway.state import Gateway
from kvarn.store.errors import NotFoundError
from kvarn.store.owner import LimitRule
from kvarn.store.repositories.pages import cut_page
from kvarn.store.repositories.tenants import rate_limits
from kvarn.store.repositories.tenants.keys import get_key
from kvarn.store.repositories.tenants.organizations import get_organization
from kvarn.store.repositories.tenants.projects import get_project
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import RateLimitObject
from kvarn.wire.openai.organization.requests import RateLimitUpdate

router = APIRouter(prefix="/v1/organization", tags=["administration"])

_PROJECT = "/projects/{project_id}/rate_limits"
_KEY = "/projects/{project_id}/api_keys/{key_id}/rate_limits"
_TENANT = "/tenants/{tenant_id}/rate_limits"
_LIST = ListQuery(default_limit=100, ascending=True, ordered=False, before=True)


@router.get(_PROJECT, summary="List a project's rate limits", openapi_extra=_LIST.described)
@shapes(ListObject[RateLimitObject])
async def list_of_project(request: Request, project_id: str) -> Response:
    """Limits of all the project's requests together."""
    admin = admin_context(request)
    async with admin.reading() as session:
        await get_project(session, admin.organization_id, project_id)
        return await _list(request, admin, session, project_id)


@router.post(_PROJECT + "/{rate_limit_id:path}", summary="Modify a project's rate limit")
@shapes(RateLimitObject, RateLimitUpdate)
async def set_of_project(request: Request, project_id: str, rate_limit_id: str) -> Response:
    """Set limits; what is left out stays, null takes a limit away."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        await get_project(session, admin.organization_id, project_id)
    return await _set(request, admin, admin.organization_id, project_id, rate_limit_id, project_id)


@router.delete(_PROJECT + "/{rate_limit_id:path}", summary="Take a project's rate limit away")
@shapes(DeletedObject)
async def drop_of_project(request: Request, project_id: str, rate_limit_id: str) -> Response:
    """Ours: no limit any more."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        await get_project(session, admin.organization_id, project_id)
    return await _drop(admin, admin.organization_id, project_id, rate_limit_id, project_id)


@router.get(_KEY, summary="List a key's rate limits", openapi_extra=_LIST.described)
@shapes(ListObject[RateLimitObject])
async def list_of_key(request: Request, project_id: str, key_id: str) -> Response:
    """Ours: limits of one key's requests."""
    admin = admin_context(request)
    async with admin.reading() as session:
        await get_key(session, admin.organization_id, key_id, project_id=project_id)
        return await _list(request, admin, session, key_id)


@router.post(_KEY + "/{rate_limit_id:path}", summary="Modify a key's rate limit")
@shapes(RateLimitObject, RateLimitUpdate)
async def set_of_key(request: Request, project_id: str, key_id: str, rate_limit_id: str) -> Response:
    """Ours: as for a project."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        await get_key(session, admin.organization_id, key_id, project_id=project_id)
    return await _set(request, admin, admin.organization_id, key_id, rate_limit_id, project_id)


@router.delete(_KEY + "/{rate_limit_id:path}", summary="Take a key's rate limit away")
@shapes(DeletedObject)
async def drop_of_key(request: Request, project_id: str, key_id: str, rate_limit_id: str) -> Response:
    """Ours: no limit any more."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        await get_key(session, admin.organization_id, key_id, project_id=project_id)
    return await _drop(admin, admin.organization_id, key_id, rate_limit_id, project_id)


@router.get(_TENANT, summary="List an organisation's rate limits", openapi_extra=_LIST.described)
@shapes(ListObject[RateLimitObject])
async def list_of_tenant(request: Request, tenant_id: str) -> Response:
    """Ours, for platform administrators: limits of all the organisation's requests together."""
    admin = platform_admin_context(request)
    async with admin.reading() as session:
        await get_organization(session, tenant_id)
        return await _list(request, admin, session, tenant_id)


@router.post(_TENANT + "/{rate_limit_id:path}", summary="Modify an organisation's rate limit")
@shapes(RateLimitObject, RateLimitUpdate)
async def set_of_tenant(request: Request, tenant_id: str, rate_limit_id: str) -> Response:
    """Ours, for platform administrators: as for a project."""
    admin = platform_admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        await get_organization(session, tenant_id)
    return await _set(request, admin, tenant_id, tenant_id, rate_limit_id, None)


@router.delete(_TENANT + "/{rate_limit_id:path}", summary="Take an organisation's rate limit away")
@shapes(DeletedObject)
async def drop_of_tenant(request: Request, tenant_id: str, rate_limit_id: str) -> Response:
    """Ours, for platform administrators: the server's own limit holds again, if it has one."""
    admin = platform_admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        await get_organization(session, tenant_id)
    return await _drop(admin, tenant_id, tenant_id, rate_limit_id, None)


async def _list(request: Request, admin: AdminContext, session: AsyncSession, holder: str) -> Response:
    cursor = _LIST.read(request)
    stored = {rule.model: rule for rule in await rate_limits.limits_of(session, (holder,))}
    models = list(dict.fromkeys(["*", *_served(admin.gateway), *sorted(stored)]))
    rules = [stored.get(model, LimitRule(holder, model)) for model in models]
    page = cut_page(rules, cursor, lambda rule: f"{RATE_LIMIT_PREFIX}{rule.model}")
    return json_response(list_answer(page, rate_limit_object))


async def _set(
    request: Request, admin: AdminContext, organization_id: str, holder: str, rate_limit_id: str, project_id: str | None
) -> Response:
    asked = await admin.gateway.read(request, RateLimitUpdate)
    model = _model_of(rate_limit_id)
    async with admin.audited_change() as change:
        known = {rule.model for rule in await rate_limits.limits_of(change.session, (holder,))}
        if model not in known.union(_served(admin.gateway), ["*"]):
            raise NotFoundError(f"No such rate limit: {rate_limit_id!r}.")
        changes = limit_changes(asked)
        rule = await rate_limits.set_limit(change, organization_id, holder, model, changes, project_id=project_id)
    return json_response(rate_limit_object(rule))


async def _drop(
    admin: AdminContext, organization_id: str, holder: str, rate_limit_id: str, project_id: str | None
) -> Response:
    async with admin.audited_change() as change:
        model = _model_of(rate_limit_id)
        await rate_limits.drop_limit(change, organization_id, holder, model, project_id=project_id)
    return json_response(deleted_object("project.rate_limit", rate_limit_id))


def _served(gateway: Gateway) -> list[str]:
    return [model.name for model in gateway.models]


def _model_of(rate_limit_id: str) -> str:
    if not rate_limit_id.startswith(RATE_LIMIT_PREFIX):
        raise NotFoundError(f"No such rate limit: {rate_limit_id!r}.")
    return rate_limit_id.removeprefix(RATE_LIMIT_PREFIX)
