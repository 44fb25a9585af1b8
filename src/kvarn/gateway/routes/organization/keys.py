"""Keys: `/v1/organization/admin_api_keys`, and `api_keys` of a project."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from kvarn.gateway.dependencies import ADMINISTRATION, AdminContext, AdminDep
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.query import ListQuery, OldestFirstQuery, OrderedOldestFirstQuery, list_answer
from kvarn.gateway.routes.organization.objects import admin_key_object, project_key_object, scopes_of
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
async def list_admin_keys(admin: AdminDep, query: OrderedOldestFirstQuery) -> ListObject[AdminKeyObject]:
    """Keys with which the organisation can be administered, oldest first unless `order` is `desc`."""
    return list_answer(await _list(admin, query), lambda found: admin_key_object(*found))


@router.post(_ADMIN_KEYS, summary="Create an administrator's key")
async def create_admin_key(admin: AdminDep, body: AdminKeyCreate) -> AdminKeyObject:
    """A new key, which belongs to the user whose key asks for it; `value` is shown in this answer only."""
    user_id = admin.principal.user_id
    wanted = keys.KeyRequest(name=body.name, role=Role.ADMIN, user_id=user_id, lifetime_s=body.expires_in_seconds)
    async with admin.audited_change() as change:
        project_id = await default_project_id(change.session, admin.organization_id)
        key, value = await keys.add_key(change, admin.organization_id, project_id, wanted)
        owners = await users_by_id(change.session, {user_id})
    return admin_key_object(key, owners.get(user_id), value=value)


@router.get(_ADMIN_KEYS + "/{key_id}", summary="Retrieve an administrator's key")
async def get_admin_key(admin: AdminDep, key_id: str) -> AdminKeyObject:
    """One key, without its value."""
    return admin_key_object(*await _get(admin, key_id))


@router.delete(_ADMIN_KEYS + "/{key_id}", summary="Delete an administrator's key")
async def delete_admin_key(admin: AdminDep, key_id: str) -> DeletedObject:
    """Revoke a key; not the last with which the organisation can be administered."""
    await admin.change(keys.revoke_key, key_id, admin=True)
    return DeletedObject(id=key_id, object="organization.admin_api_key.deleted")


@router.get(_PROJECT_KEYS, summary="List a project's API keys")
async def list_project_keys(admin: AdminDep, project_id: str, query: ProjectKeyQuery) -> ListObject[ProjectKeyObject]:
    """Keys that are not revoked, oldest first. A member who leaves a project loses their keys in it, so that none is
    ever `inactive`."""
    await admin.read(get_project, project_id)
    page = await _list(admin, query, project_id)
    if query.owner_project_access == "inactive":
        page = Page([], False)
    return list_answer(page, lambda found: project_key_object(*found))


@router.post(_PROJECT_KEYS, summary="Create an API key")
async def create_project_key(admin: AdminDep, project_id: str, body: ProjectKeyCreate) -> ProjectKeyObject:
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
    return project_key_object(key, owner, value=value)


@router.get(_PROJECT_KEYS + "/{key_id}", summary="Retrieve an API key")
async def get_project_key(admin: AdminDep, project_id: str, key_id: str) -> ProjectKeyObject:
    """One key, without its value."""
    return project_key_object(*await _get(admin, key_id, project_id))


@router.delete(_PROJECT_KEYS + "/{key_id}", summary="Delete an API key")
async def delete_project_key(admin: AdminDep, project_id: str, key_id: str) -> DeletedObject:
    """Revoke a key: at this gateway at once, at the others within `auth.refresh_s`."""
    await admin.change(keys.revoke_key, key_id, project_id=project_id)
    return DeletedObject(id=key_id, object="organization.project.api_key.deleted")


async def _list(
    admin: AdminContext, query: ListQuery, project_id: str | None = None
) -> Page[tuple[ApiKey, User | None]]:
    """Keys of a project, else administrators' keys, with their owners."""
    async with admin.reading() as session:
        own, cursor = admin.organization_id, query.cursor
        page = await keys.list_keys(session, own, cursor, project_id=project_id, admin=project_id is None)
        owners = await users_by_id(session, {key.user_id for key in page.items})
    return Page([(key, owners.get(key.user_id)) for key in page.items], page.has_more)


async def _get(admin: AdminContext, key_id: str, project_id: str | None = None) -> tuple[ApiKey, User | None]:
    async with admin.reading() as session:
        own, is_admin = admin.organization_id, project_id is None
        key = await keys.get_key(session, own, key_id, project_id=project_id, admin=is_admin)
        return key, (await users_by_id(session, {key.user_id})).get(key.user_id)
