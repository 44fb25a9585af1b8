"""`/v1/organization/projects`, and a project's service accounts."""

from __future__ import annotations

from pydantic import Field

from kvarn.config.extras import missing_extra
from kvarn.gateway.dependencies import ADMINISTRATION, AdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import Flag, OldestFirstQuery, list_answer
from kvarn.gateway.routes.organization.objects import (
    project_object,
    scopes_of,
    service_account_key_object,
    service_account_object,
)
from kvarn.store.repositories.tenants import projects, users
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import ProjectObject, ServiceAccountKeyObject, ServiceAccountObject
from kvarn.wire.openai.organization.requests import (
    ProjectCreate,
    ProjectUpdate,
    ServiceAccountCreate,
    ServiceAccountKeyCreate,
    ServiceAccountUpdate,
)

router = json_router("/v1/organization/projects", "administration", ADMINISTRATION)

_ACCOUNTS = "/{project_id}/service_accounts"
_SECRET_KEY = "Secret Key"  # OpenAI's name of a key that was given none


class ProjectQuery(OldestFirstQuery):
    include_archived: Flag = Field(False, description="Archived projects too.")


@router.get("", summary="List projects")
async def list_projects(admin: AdminDep, query: ProjectQuery) -> ListObject[ProjectObject]:
    """The organisation's projects, oldest first; archived ones with `include_archived=true`."""
    page = await admin.read(projects.list_projects, query.cursor, archived=query.include_archived)
    return list_answer(page, project_object)


@router.post("", summary="Create a project")
async def create_project(admin: AdminDep, body: ProjectCreate) -> ProjectObject:
    return project_object(await admin.change(projects.add_project, body.name))


@router.get("/{project_id}", summary="Retrieve a project")
async def get_project(admin: AdminDep, project_id: str) -> ProjectObject:
    return project_object(await admin.read(projects.get_project, project_id))


@router.post("/{project_id}", summary="Modify a project")
async def modify_project(admin: AdminDep, project_id: str, body: ProjectUpdate) -> ProjectObject:
    """Set its name, whether its prompts may be sampled, which tools of the platform it may use, or its response
    cache."""
    if body.log_prompts and (missing := missing_extra("log_prompts", "encryption")) is not None:
        raise invalid_request(missing, "log_prompts")
    changes = body.model_dump(exclude_none=True)
    if changes.get("tools") == ["*"]:
        changes["tools"] = None
    if changes.get("response_cache") == "default":
        changes["response_cache"] = None
    return project_object(await admin.change(projects.change_project, project_id, changes))


@router.post("/{project_id}/archive", summary="Archive a project")
async def archive_project(admin: AdminDep, project_id: str) -> ProjectObject:
    """Its keys stop working; what it stores stays."""
    return project_object(await admin.change(projects.archive_project, project_id))


@router.delete("/{project_id}/response_cache", summary="Clear a project's response cache")
async def clear_response_cache(admin: AdminDep, project_id: str) -> DeletedObject:
    """Find none of its cached answers any more, nor cached KV of its prompts, in any gateway."""
    await admin.change(projects.give_up_cached, project_id)
    return DeletedObject(id=project_id, object="organization.project.response_cache.deleted")


@router.get(_ACCOUNTS, summary="List service accounts")
async def list_accounts(admin: AdminDep, project_id: str, query: OldestFirstQuery) -> ListObject[ServiceAccountObject]:
    page = await admin.read(users.list_members, project_id, query.cursor, "service_account")
    return list_answer(page, service_account_object)


@router.post(_ACCOUNTS, summary="Create a service account")
async def create_account(admin: AdminDep, project_id: str, body: ServiceAccountCreate) -> ServiceAccountObject:
    """A new service account, with a key whose `value` is shown in this answer only, unless
    `create_service_account_only` is true."""
    key = None
    async with admin.audited_change() as change:
        member = await users.add_service_account(change, admin.organization_id, project_id, body.name, "member")
        if not body.create_service_account_only:
            wanted = KeyRequest(name=_SECRET_KEY, user_id=member.user.id)
            key = service_account_key_object(*await add_key(change, admin.organization_id, project_id, wanted))
    return service_account_object(member, api_key=key)


@router.get(_ACCOUNTS + "/{user_id}", summary="Retrieve a service account")
async def get_account(admin: AdminDep, project_id: str, user_id: str) -> ServiceAccountObject:
    return service_account_object(await admin.read(users.get_member, project_id, user_id, "service_account"))


@router.post(_ACCOUNTS + "/{user_id}", summary="Modify a service account")
async def modify_account(
    admin: AdminDep, project_id: str, user_id: str, body: ServiceAccountUpdate
) -> ServiceAccountObject:
    """Set its name or its role in the project."""
    changes = body.model_dump(include={"name", "role"})
    return service_account_object(
        await admin.change(users.change_member, project_id, user_id, "service_account", **changes)
    )


@router.delete(_ACCOUNTS + "/{user_id}", summary="Delete a service account")
async def delete_account(admin: AdminDep, project_id: str, user_id: str) -> DeletedObject:
    await admin.change(users.delete_service_account, project_id, user_id)
    return DeletedObject(id=user_id, object="organization.project.service_account.deleted")


@router.post(_ACCOUNTS + "/{user_id}/api_keys", summary="Create a service account's key")
async def create_account_key(
    admin: AdminDep, project_id: str, user_id: str, body: ServiceAccountKeyCreate
) -> ServiceAccountKeyObject:
    """One more key; `value` is shown in this answer only."""
    name, scopes = body.name or _SECRET_KEY, scopes_of(body.scopes)
    wanted = KeyRequest(name=name, user_id=user_id, scopes=scopes, lifetime_s=body.expires_in_seconds)
    async with admin.audited_change() as change:
        await users.get_member(change.session, admin.organization_id, project_id, user_id, "service_account")
        key, value = await add_key(change, admin.organization_id, project_id, wanted)
    return service_account_key_object(key, value)
