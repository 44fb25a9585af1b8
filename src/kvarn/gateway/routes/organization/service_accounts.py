"""`/v1/organization/projects/{project_id}/service_accounts`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.admin_context import admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.query import check_query
from kvarn.gateway.routes.organization.objects import (
    deleted_object,
    scopes_of,
    service_account_key_object,
    service_account_object,
)
from kvarn.store.repositories.tenants import users
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import ServiceAccountKeyObject, ServiceAccountObject
from kvarn.wire.openai.organization.requests import ServiceAccountCreate, ServiceAccountKeyCreate, ServiceAccountUpdate

router = APIRouter(prefix="/v1/organization/projects/{project_id}/service_accounts", tags=["administration"])

_LIST = ListQuery(ascending=True, ordered=False)

_SECRET_KEY = "Secret Key"
"""OpenAI's name of a key that was given none."""


@router.get("", summary="List service accounts", openapi_extra=_LIST.described)
@shapes(ListObject[ServiceAccountObject])
async def list_accounts(request: Request, project_id: str) -> Response:
    """The project's service accounts, oldest first."""
    admin = admin_context(request)
    cursor = _LIST.read(request)
    async with admin.reading() as session:
        page = await users.list_members(session, admin.organization_id, project_id, cursor, "service_account")
    return json_response(list_answer(page, service_account_object))


@router.post("", summary="Create a service account")
@shapes(ServiceAccountObject, ServiceAccountCreate)
async def create_account(request: Request, project_id: str) -> Response:
    """A new service account, with a key whose `value` is shown in this answer only, unless
    `create_service_account_only` is true."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, ServiceAccountCreate)
    shown = None
    async with admin.audited_change() as change:
        member = await users.add_service_account(change, admin.organization_id, project_id, asked.name, "member")
        if not asked.create_service_account_only:
            wanted = KeyRequest(name=_SECRET_KEY, user_id=member.user.id)
            shown = service_account_key_object(*await add_key(change, admin.organization_id, project_id, wanted))
    return json_response(service_account_object(member) | {"api_key": shown})


@router.get("/{user_id}", summary="Retrieve a service account")
@shapes(ServiceAccountObject)
async def get_account(request: Request, project_id: str, user_id: str) -> Response:
    """One service account."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        member = await users.get_member(session, admin.organization_id, project_id, user_id, "service_account")
    return json_response(service_account_object(member))


@router.post("/{user_id}", summary="Modify a service account")
@shapes(ServiceAccountObject, ServiceAccountUpdate)
async def modify_account(request: Request, project_id: str, user_id: str) -> Response:
    """Set its name or its role in the project."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, ServiceAccountUpdate)
    async with admin.audited_change() as change:
        member = await users.change_service_account(
            change, admin.organization_id, project_id, user_id, name=asked.name, role=asked.role
        )
    return json_response(service_account_object(member))


@router.delete("/{user_id}", summary="Delete a service account")
@shapes(DeletedObject)
async def delete_account(request: Request, project_id: str, user_id: str) -> Response:
    """Delete it with all its keys."""
    admin = admin_context(request)
    check_query(request)
    async with admin.audited_change() as change:
        await users.delete_service_account(change, admin.organization_id, project_id, user_id)
    return json_response(deleted_object("organization.project.service_account", user_id))


@router.post("/{user_id}/api_keys", summary="Create a service account's key")
@shapes(ServiceAccountKeyObject, ServiceAccountKeyCreate)
async def create_key(request: Request, project_id: str, user_id: str) -> Response:
    """One more key; `value` is shown in this answer only."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, ServiceAccountKeyCreate)
    wanted = KeyRequest(
        name=asked.name or _SECRET_KEY,
        user_id=user_id,
        scopes=scopes_of(asked.scopes),
        lifetime_s=asked.expires_in_seconds,
    )
    async with admin.audited_change() as change:
        await users.get_member(change.session, admin.organization_id, project_id, user_id, "service_account")
        key, value = await add_key(change, admin.organization_id, project_id, wanted)
    return json_response(service_account_key_object(key, value))
