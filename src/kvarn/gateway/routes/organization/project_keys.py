"""`/v1/organization/projects/{project_id}/api_keys`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.admin_context import admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.parameters import Text
from kvarn.gateway.query import check_query
from kvarn.gateway.routes.organization.objects import deleted_object, project_key_object, scopes_of
from kvarn.store.models import ApiKey
from kvarn.store.owner import Role
from kvarn.store.repositories.pages import Page
from kvarn.store.repositories.tenants import keys
from kvarn.store.repositories.tenants.projects import get_project
from kvarn.store.repositories.tenants.users import get_member, users_by_id
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import ProjectKeyObject
from kvarn.wire.openai.organization.requests import ProjectKeyCreate

router = APIRouter(prefix="/v1/organization/projects/{project_id}/api_keys", tags=["administration"])

_ACCESS = Text(
    "owner_project_access",
    "Whether the keys' owners have access to the project. Default: all.",
    default=None,
    choices=("active", "inactive", "any"),
)
_LIST = ListQuery(_ACCESS, ascending=True, ordered=False)


@router.get("", summary="List a project's API keys", openapi_extra=_LIST.described)
@shapes(ListObject[ProjectKeyObject])
async def list_keys(request: Request, project_id: str) -> Response:
    """Keys that are not revoked, oldest first. A member who leaves a project loses their keys in it, so that none is
    ever `inactive`."""
    admin = admin_context(request)
    cursor = _LIST.read(request)
    async with admin.reading() as session:
        await get_project(session, admin.organization_id, project_id)
        page = await keys.list_keys(session, admin.organization_id, cursor, project_id=project_id)
        owners = await users_by_id(session, {key.user_id for key in page.items})
    if _ACCESS.read(request) == "inactive":
        page = Page[ApiKey]([], False)
    return json_response(list_answer(page, lambda key: project_key_object(key, owners.get(key.user_id))))


@router.post("", summary="Create an API key")
@shapes(ProjectKeyObject, ProjectKeyCreate)
async def create_key(request: Request, project_id: str) -> Response:
    """A new key; `value` is shown in this answer only. An operation of ours: OpenAI makes keys on its pages."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, ProjectKeyCreate)
    wanted = keys.KeyRequest(
        name=asked.name,
        role=Role(asked.role),
        user_id=asked.user_id,
        scopes=scopes_of(asked.scopes),
        lifetime_s=asked.expires_in_seconds,
    )
    async with admin.audited_change() as change:
        owner = None
        if asked.user_id is not None:
            owner = (await get_member(change.session, admin.organization_id, project_id, asked.user_id)).user
        key, value = await keys.add_key(change, admin.organization_id, project_id, wanted)
    return json_response(project_key_object(key, owner) | {"value": value})


@router.get("/{key_id}", summary="Retrieve an API key")
@shapes(ProjectKeyObject)
async def get_key(request: Request, project_id: str, key_id: str) -> Response:
    """One key, without its value."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        key = await keys.get_key(session, admin.organization_id, key_id, project_id=project_id)
        owners = await users_by_id(session, {key.user_id})
    return json_response(project_key_object(key, owners.get(key.user_id)))


@router.delete("/{key_id}", summary="Delete an API key")
@shapes(DeletedObject)
async def delete_key(request: Request, project_id: str, key_id: str) -> Response:
    """Revoke a key: at this gateway at once, at the others within `auth.refresh_s`."""
    admin = admin_context(request)
    check_query(request)
    async with admin.audited_change() as change:
        await keys.revoke_key(change, admin.organization_id, key_id, project_id=project_id)
    return json_response(deleted_object("organization.project.api_key", key_id))
