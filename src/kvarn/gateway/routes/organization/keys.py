"""Keys: `/v1/organization/admin_api_keys`, and `api_keys` of a project."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvarn.gateway.dependencies import ADMINISTRATION, AdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import OldestFirstQuery, OrderedOldestFirstQuery, list_answer
from kvarn.gateway.routes.organization.objects import admin_key_object, project_key_object, scopes_of
from kvarn.store.owner import Role
from kvarn.store.repositories.pages import Page
from kvarn.store.repositories.tenants import keys
from kvarn.store.repositories.tenants.organizations import default_project_id
from kvarn.store.repositories.tenants.projects import get_project
from kvarn.store.repositories.tenants.users import get_member
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import AdminKeyObject, ProjectKeyObject
from kvarn.wire.openai.organization.requests import AdminKeyCreate, ProjectKeyCreate

router = json_router("/v1/organization", "administration", ADMINISTRATION)

_ADMIN_KEYS = "/admin_api_keys"
_PROJECT_KEYS = "/projects/{project_id}/api_keys"


class ProjectKeyQuery(OldestFirstQuery):
    owner_project_access: Literal["active", "inactive", "any"] | None = Field(
        None, description="Whether the keys' owners have access to the project. Default: all."
    )


@router.get(_ADMIN_KEYS, summary="List administrators' keys")
async def list_admin_keys(admin: AdminDep, query: OrderedOldestFirstQuery) -> ListObject[AdminKeyObject]:
    """Keys with which the organisation can be administered, oldest first unless `order` is `desc`."""
    return list_answer(await admin.read(keys.list_keys, query.cursor, admin=True), admin_key_object)


@router.post(_ADMIN_KEYS, summary="Create an administrator's key")
async def create_admin_key(admin: AdminDep, body: AdminKeyCreate) -> AdminKeyObject:
    """A new key, which belongs to the user whose key asks for it; `value` is shown in this answer only."""
    wanted = keys.KeyRequest(
        name=body.name, role=Role.ADMIN, user_id=admin.principal.user_id, lifetime_s=body.expires_in_seconds
    )
    async with admin.audited_change() as change:
        project_id = await default_project_id(change.session, admin.organization_id)
        key, value = await keys.add_key(change, admin.organization_id, project_id, wanted)
    return admin_key_object(key, value=value)


@router.get(_ADMIN_KEYS + "/{key_id}", summary="Retrieve an administrator's key")
async def get_admin_key(admin: AdminDep, key_id: str) -> AdminKeyObject:
    return admin_key_object(await admin.read(keys.get_key, key_id, admin=True))


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
    page = await admin.read(keys.list_keys, query.cursor, project_id=project_id)
    if query.owner_project_access == "inactive":
        page = Page([], False)
    return list_answer(page, project_key_object)


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
        if body.user_id is not None:
            await get_member(change.session, admin.organization_id, project_id, body.user_id)
        key, value = await keys.add_key(change, admin.organization_id, project_id, wanted)
    return project_key_object(key, value=value)


@router.get(_PROJECT_KEYS + "/{key_id}", summary="Retrieve an API key")
async def get_project_key(admin: AdminDep, project_id: str, key_id: str) -> ProjectKeyObject:
    return project_key_object(await admin.read(keys.get_key, key_id, project_id=project_id))


@router.delete(_PROJECT_KEYS + "/{key_id}", summary="Delete an API key")
async def delete_project_key(admin: AdminDep, project_id: str, key_id: str) -> DeletedObject:
    """Revoke a key: at this gateway at once, at the others within `auth.refresh_s`."""
    await admin.change(keys.revoke_key, key_id, project_id=project_id)
    return DeletedObject(id=key_id, object="organization.project.api_key.deleted")
