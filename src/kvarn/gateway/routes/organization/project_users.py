"""`/v1/organization/projects/{project_id}/users`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.admin_context import admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.query import check_query
from kvarn.gateway.routes.organization.objects import deleted_object, project_user_object
from kvarn.store.repositories.tenants import users
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.objects import ProjectUserObject
from kvarn.wire.openai.organization.requests import ProjectUserCreate, ProjectUserUpdate

router = APIRouter(prefix="/v1/organization/projects/{project_id}/users", tags=["administration"])

_LIST = ListQuery(ascending=True, ordered=False)


@router.get("", summary="List a project's users", openapi_extra=_LIST.described)
@shapes(ListObject[ProjectUserObject])
async def list_users(request: Request, project_id: str) -> Response:
    """People in the project."""
    admin = admin_context(request)
    cursor = _LIST.read(request)
    async with admin.reading() as session:
        page = await users.list_members(session, admin.organization_id, project_id, cursor, "person")
    return json_response(list_answer(page, project_user_object))


@router.post("", summary="Add a user to a project")
@shapes(ProjectUserObject, ProjectUserCreate)
async def create_user(request: Request, project_id: str) -> Response:
    """Give a person of the organisation a place in the project."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, ProjectUserCreate)
    async with admin.audited_change() as change:
        if asked.user_id is not None:
            user = await users.get_user(change.session, admin.organization_id, asked.user_id)
        else:
            user = await users.find_user(change.session, admin.organization_id, asked.email or "")
        member = await users.add_member(change, admin.organization_id, project_id, user, asked.role)
    return json_response(project_user_object(member))


@router.get("/{user_id}", summary="Retrieve a project's user")
@shapes(ProjectUserObject)
async def get_user(request: Request, project_id: str, user_id: str) -> Response:
    """One person in the project."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        member = await users.get_member(session, admin.organization_id, project_id, user_id, "person")
    return json_response(project_user_object(member))


@router.post("/{user_id}", summary="Modify a project's user")
@shapes(ProjectUserObject, ProjectUserUpdate)
async def modify_user(request: Request, project_id: str, user_id: str) -> Response:
    """Set a person's role in the project."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, ProjectUserUpdate)
    async with admin.audited_change() as change:
        member = await users.change_member(change, admin.organization_id, project_id, user_id, asked.role)
    return json_response(project_user_object(member))


@router.delete("/{user_id}", summary="Remove a user from a project")
@shapes(DeletedObject)
async def delete_user(request: Request, project_id: str, user_id: str) -> Response:
    """Take a person out of the project; the keys they have in it are revoked."""
    admin = admin_context(request)
    check_query(request)
    async with admin.audited_change() as change:
        await users.remove_member(change, admin.organization_id, project_id, user_id)
    return json_response(deleted_object("organization.project.user", user_id))
