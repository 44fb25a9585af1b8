"""`/v1/organization/admin_api_keys`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.admin_context import admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.query import check_query
from kvarn.gateway.routes.organization.objects import admin_key_object, deleted_object
from kvarn.store.owner import Role
from kvarn.store.repositories.tenants import keys
from kvarn.store.repositories.tenants.organizations import default_project_id
from kvarn.store.repositories.tenants.users import users_by_id
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import AdminKeyObject
from kvarn.wire.openai.organization.requests import AdminKeyCreate

router = APIRouter(prefix="/v1/organization/admin_api_keys", tags=["administration"])

_LIST = ListQuery(ascending=True)


@router.get("", summary="List administrators' keys", openapi_extra=_LIST.described)
@shapes(ListObject[AdminKeyObject])
async def list_keys(request: Request) -> Response:
    """Keys with which the organisation can be administered, oldest first unless `order` is `desc`."""
    admin = admin_context(request)
    cursor = _LIST.read(request)
    async with admin.reading() as session:
        page = await keys.list_keys(session, admin.organization_id, cursor, admin=True)
        owners = await users_by_id(session, {key.user_id for key in page.items})
    return json_response(list_answer(page, lambda key: admin_key_object(key, owners.get(key.user_id))))


@router.post("", summary="Create an administrator's key")
@shapes(AdminKeyObject, AdminKeyCreate)
async def create_key(request: Request) -> Response:
    """A new key, which belongs to the user whose key asks for it; `value` is shown in this answer only."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, AdminKeyCreate)
    wanted = keys.KeyRequest(
        name=asked.name, role=Role.ADMIN, user_id=admin.principal.user_id, lifetime_s=asked.expires_in_seconds
    )
    async with admin.audited_change() as change:
        project_id = await default_project_id(change.session, admin.organization_id)
        key, value = await keys.add_key(change, admin.organization_id, project_id, wanted)
        owners = await users_by_id(change.session, {key.user_id})
    return json_response(admin_key_object(key, owners.get(key.user_id)) | {"value": value})


@router.get("/{key_id}", summary="Retrieve an administrator's key")
@shapes(AdminKeyObject)
async def get_key(request: Request, key_id: str) -> Response:
    """One key, without its value."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        key = await keys.get_key(session, admin.organization_id, key_id, admin=True)
        owners = await users_by_id(session, {key.user_id})
    return json_response(admin_key_object(key, owners.get(key.user_id)))


@router.delete("/{key_id}", summary="Delete an administrator's key")
@shapes(DeletedObject)
async def delete_key(request: Request, key_id: str) -> Response:
    """Revoke a key; not the last with which the organisation can be administered."""
    admin = admin_context(request)
    check_query(request)
    async with admin.audited_change() as change:
        await keys.revoke_key(change, admin.organization_id, key_id, admin=True)
    return json_response(deleted_object("organization.admin_api_key", key_id))
