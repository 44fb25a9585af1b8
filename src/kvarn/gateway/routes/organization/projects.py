"""`/v1/organization/projects`, and a project's service accounts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from kvarn.gateway.dependencies import ADMINISTRATION, AdminDep, json_body
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.query import Flag, OldestFirstQuery, list_answer
from kvarn.gateway.routes.organization.objects import (
    project_object,
    scopes_of,
    service_account_key_object,
    service_account_object,
)
from kvarn.store.repositories.tenants import projects, users
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import ProjectObject, ServiceAccountKeyObject, ServiceAccountObject
from kvarn.wire.openai.organization.requests import (
    ProjectCreate,
    ProjectUpdate,
    ServiceAccountCreate,
    ServiceAccountKeyCreate,
    ServiceAccountUpdate,
)

router = APIRouter(
    prefix="/v1/organization/projects", tags=["administration"], route_class=JsonRoute, dependencies=ADMINISTRATION
)

_ACCOUNTS = "/{project_id}/service_accounts"
_SECRET_KEY = "Secret Key"
"""OpenAI's name of a key that was given none."""


class ProjectQuery(OldestFirstQuery):
    """Which projects."""

    include_archived: Flag = Field(False, description="Archived projects too.")


@router.get("", summary="List projects")
async def list_projects(admin: AdminDep, query: Annotated[ProjectQuery, Query()]) -> ListObject[ProjectObject]:
    """The organisation's projects, oldest first; archived ones with `include_archived=true`."""
    archived = query.include_archived
    async with admin.reading() as session:
        page = await projects.list_projects(session, admin.organization_id, query.cursor, archived=archived)
    return list_answer(page, project_object)


@router.post("", summary="Create a project")
async def create_project(admin: AdminDep, body: Annotated[ProjectCreate, json_body(ProjectCreate)]) -> ProjectObject:
    """A new project."""
    async with admin.audited_change() as change:
        project = await projects.add_project(change, admin.organization_id, body.name)
    return project_object(project)


@router.get("/{project_id}", summary="Retrieve a project")
async def get_project(admin: AdminDep, project_id: str) -> ProjectObject:
    """One project, archived or not."""
    async with admin.reading() as session:
        return project_object(await projects.get_project(session, admin.organization_id, project_id))


@router.post("/{project_id}", summary="Modify a project")
async def modify_project(
    admin: AdminDep, project_id: str, body: Annotated[ProjectUpdate, json_body(ProjectUpdate)]
) -> ProjectObject:
    """Set its name, or whether its prompts may be sampled."""
    changes = body.model_dump(exclude_none=True)
    async with admin.audited_change() as change:
        project = await projects.change_project(change, admin.organization_id, project_id, changes)
    return project_object(project)


@router.post("/{project_id}/archive", summary="Archive a project")
async def archive_project(admin: AdminDep, project_id: str) -> ProjectObject:
    """Its keys stop working; what it stores stays."""
    async with admin.audited_change() as change:
        project = await projects.archive_project(change, admin.organization_id, project_id)
    return project_object(project)


@router.get(_ACCOUNTS, summary="List service accounts")
async def list_accounts(
    admin: AdminDep, project_id: str, query: Annotated[OldestFirstQuery, Query()]
) -> ListObject[ServiceAccountObject]:
    """The project's service accounts, oldest first."""
    async with admin.reading() as session:
        page = await users.list_members(session, admin.organization_id, project_id, query.cursor, "service_account")
    return list_answer(page, service_account_object)


@router.post(_ACCOUNTS, summary="Create a service account")
async def create_account(
    admin: AdminDep, project_id: str, body: Annotated[ServiceAccountCreate, json_body(ServiceAccountCreate)]
) -> ServiceAccountObject:
    """A new service account, with a key whose `value` is shown in this answer only, unless
    `create_service_account_only` is true."""
    key = None
    async with admin.audited_change() as change:
        member = await users.add_service_account(change, admin.organization_id, project_id, body.name, "member")
        if not body.create_service_account_only:
            wanted = KeyRequest(name=_SECRET_KEY, user_id=member.user.id)
            made = await add_key(change, admin.organization_id, project_id, wanted)
            key = service_account_key_object(*made)
    return service_account_object(member) | {"api_key": key}


@router.get(_ACCOUNTS + "/{user_id}", summary="Retrieve a service account")
async def get_account(admin: AdminDep, project_id: str, user_id: str) -> ServiceAccountObject:
    """One service account."""
    async with admin.reading() as session:
        member = await users.get_member(session, admin.organization_id, project_id, user_id, "service_account")
    return service_account_object(member)


@router.post(_ACCOUNTS + "/{user_id}", summary="Modify a service account")
async def modify_account(
    admin: AdminDep,
    project_id: str,
    user_id: str,
    body: Annotated[ServiceAccountUpdate, json_body(ServiceAccountUpdate)],
) -> ServiceAccountObject:
    """Set its name or its role in the project."""
    async with admin.audited_change() as change:
        member = await users.change_service_account(
            change, admin.organization_id, project_id, user_id, name=body.name, role=body.role
        )
    return service_account_object(member)


@router.delete(_ACCOUNTS + "/{user_id}", summary="Delete a service account")
async def delete_account(admin: AdminDep, project_id: str, user_id: str) -> DeletedObject:
    """Delete it with all its keys."""
    async with admin.audited_change() as change:
        await users.delete_service_account(change, admin.organization_id, project_id, user_id)
    return DeletedObject(id=user_id, object="organization.project.service_account.deleted")


@router.post(_ACCOUNTS + "/{user_id}/api_keys", summary="Create a service account's key")
async def create_account_key(
    admin: AdminDep,
    project_id: str,
    user_id: str,
    body: Annotated[ServiceAccountKeyCreate, json_body(ServiceAccountKeyCreate)],
) -> ServiceAccountKeyObject:
    """One more key; `value` is shown in this answer only."""
    name, scopes = body.name or _SECRET_KEY, scopes_of(body.scopes)
    wanted = KeyRequest(name=name, user_id=user_id, scopes=scopes, lifetime_s=body.expires_in_seconds)
    async with admin.audited_change() as change:
        await users.get_member(change.session, admin.organization_id, project_id, user_id, "service_account")
        key, value = await add_key(change, admin.organization_id, project_id, wanted)
    return service_account_key_object(key, value)
