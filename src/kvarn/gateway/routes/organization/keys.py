"""Keys: `/v1/organization/admin_api_keys`, and `api_keys` of a project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.gateway.dependencies import ADMINISTRATION, AdminDep, json_body
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.query import ItemT, OldestFirstQuery, OrderedOldestFirstQuery, list_answer
from kvarn.gateway.routes.organization.objects import (
    admin_key_object,
    project_key_object,
    scopes_of,
)
from kvarn.store.models import ApiKey, User
from kvarn.store.owner import Role
from kvarn.store.repositories.pages import Page
from kvarn.store.repositories.tenants import keys
from kvarn.store.repositories.tenants.organizations import default_project_id
from kvarn.store.repositories.tenants.projects import get_project
from kvarn.store.repositories.tenants.users import get_member, users_by_id
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import AdminKeyObject, ProjectKeyObject
from kvarn.wire.openai.organization.requests import AdminKeyCreate, ProjectKeyCreate

router = APIRouter(
    prefix="/v1/organization", tags=["administration"], route_class=JsonRoute, dependencies=ADMINISTRATION
)

_ADMIN_KEYS = "/admin_api_keys"
_PROJECT_KEYS = "/projects/{project_id}/api_keys"


class ProjectKeyQuery(OldestFirstQuery):
    """Which keys of a project."""

    owner_project_access: Literal["active", "inactive", "any"] | None = Field(
        None, description="Whether the keys' owners have access to the project. Default: all."
    )


@router.get(_ADMIN_KEYS, summary="List administrators' keys")
async def list_admin_keys(
    admin: AdminDep, query: Annotated[OrderedOldestFirstQuery, Query()]
) -> ListObject[AdminKeyObject]:
    """Keys with which the organisation can be administered, oldest first unless `order` is `desc`."""
    async with admin.reading() as session:
        page = await keys.list_keys(session, admin.organization_id, query.cursor, admin=True)
        return await _list(session, page, admin_key_object)


@router.post(_ADMIN_KEYS, summary="Create an administrator's key")
async def create_admin_key(
    admin: AdminDep, body: Annotated[AdminKeyCreate, json_body(AdminKeyCreate)]
) -> AdminKeyObject:
    """A new key, which belongs to the user whose key asks for it; `value` is shown in this answer only."""
    user_id = admin.principal.user_id
    wanted = keys.KeyRequest(name=body.name, role=Role.ADMIN, user_id=user_id, lifetime_s=body.expires_in_seconds)
    async with admin.audited_change() as change:
        project_id = await default_project_id(change.session, admin.organization_id)
        key, value = await keys.add_key(change, admin.organization_id, project_id, wanted)
        owners = await users_by_id(change.session, {user_id})
    return admin_key_object(key, owners.get(user_id), value)


@router.get(_ADMIN_KEYS + "/{key_id}", summary="Retrieve an administrator's key")
async def get_admin_key(admin: AdminDep, key_id: str) -> AdminKeyObject:
    """One key, without its value."""
    async with admin.reading() as session:
        key = await keys.get_key(session, admin.organization_id, key_id, admin=True)
        owners = await users_by_id(session, {key.user_id})
    return admin_key_object(key, owners.get(key.user_id))


@router.delete(_ADMIN_KEYS + "/{key_id}", summary="Delete an administrator's key")
async def delete_admin_key(admin: AdminDep, key_id: str) -> DeletedObject:
    """Revoke a key; not the last with which the organisation can be administered."""
    async with admin.audited_change() as change:
        await keys.revoke_key(change, admin.organization_id, key_id, admin=True)
    return DeletedObject(id=key_id, object="organization.admin_api_key.deleted")


@router.get(_PROJECT_KEYS, summary="List a project's API keys")
async def list_project_keys(
    admin: AdminDep, project_id: str, query: Annotated[ProjectKeyQuery, Query()]
) -> ListObject[ProjectKeyObject]:
    """Keys that are not revoked, oldest first. A member who leaves a project loses their keys in it, so that none is
    ever `inactive`."""
    async with admin.reading() as session:
        await get_project(session, admin.organization_id, project_id)
        page = await keys.list_keys(session, admin.organization_id, query.cursor, project_id=project_id)
        if query.owner_project_access == "inactive":
            page = Page[ApiKey]([], False)
        return await _list(session, page, project_key_object)


@router.post(_PROJECT_KEYS, summary="Create an API key")
async def create_project_key(
    admin: AdminDep, project_id: str, body: Annotated[ProjectKeyCreate, json_body(ProjectKeyCreate)]
) -> ProjectKeyObject:
    """A new key; `value` is shown in this answer only. An operation of ours: OpenAI makes keys on its pages."""
    wanted = keys.KeyRequest(
        name=body.name,
        role=Role(body.role),
        user_id=body.user_id,
        scopes=scopes_of(body.scopes),
        lifetime_s=body.expires_in_seconds,
    )
    async with admin.audited_change() as change:
        owner = None
        if body.user_id is not None:
            owner = (await get_member(change.session, admin.organization_id, project_id, body.user_id)).user
        key, value = await keys.add_key(change, admin.organization_id, project_id, wanted)
    return project_key_object(key, owner, value)


@router.get(_PROJECT_KEYS + "/{key_id}", summary="Retrieve an API key")
async def get_project_key(admin: AdminDep, project_id: str, key_id: str) -> ProjectKeyObject:
    """One key, without its value."""
    async with admin.reading() as session:
        key = await keys.get_key(session, admin.organization_id, key_id, project_id=project_id)
        owners = await users_by_id(session, {key.user_id})
    return project_key_object(key, owners.get(key.user_id))


@router.delete(_PROJECT_KEYS + "/{key_id}", summary="Delete an API key")
async def delete_project_key(admin: AdminDep, project_id: str, key_id: str) -> DeletedObject:
    """Revoke a key: at this gateway at once, at the others within `auth.refresh_s`."""
    async with admin.audited_change() as change:
        await keys.revoke_key(change, admin.organization_id, key_id, project_id=project_id)
    return DeletedObject(id=key_id, object="organization.project.api_key.deleted")


async def _list(
    session: AsyncSession, page: Page[ApiKey], describe: Callable[[ApiKey, User | None], ItemT]
) -> ListObject[ItemT]:
    owners = await users_by_id(session, {key.user_id for key in page.items})
    return list_answer(page, lambda key: describe(key, owners.get(key.user_id)))
