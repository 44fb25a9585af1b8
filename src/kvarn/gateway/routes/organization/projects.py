"""`/v1/organization/projects`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.admin_context import admin_context
from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.parameters import Flag
from kvarn.gateway.query import check_query
from kvarn.gateway.routes.organization.objects import project_object
from kvarn.store.repositories.tenants import projects
from kvarn.wire.openai.lists import ListObject
from kvarn.wire.openai.organization.objects import ProjectObject
from kvarn.wire.openai.organization.requests import ProjectCreate, ProjectUpdate

router = APIRouter(prefix="/v1/organization/projects", tags=["administration"])

_ARCHIVED = Flag("include_archived", "Archived projects too.", default=False)
_LIST = ListQuery(_ARCHIVED, ascending=True, ordered=False)


@router.get("", summary="List projects", openapi_extra=_LIST.described)
@shapes(ListObject[ProjectObject])
async def list_projects(request: Request) -> Response:
    """The organisation's projects, oldest first; archived ones with `include_archived=true`."""
    admin = admin_context(request)
    cursor = _LIST.read(request)
    archived = _ARCHIVED.read(request)
    async with admin.reading() as session:
        page = await projects.list_projects(session, admin.organization_id, cursor, archived=archived)
    return json_response(list_answer(page, project_object))


@router.post("", summary="Create a project")
@shapes(ProjectObject, ProjectCreate)
async def create_project(request: Request) -> Response:
    """A new project."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, ProjectCreate)
    async with admin.audited_change() as change:
        project = await projects.add_project(change, admin.organization_id, asked.name)
    return json_response(project_object(project))


@router.get("/{project_id}", summary="Retrieve a project")
@shapes(ProjectObject)
async def get_project(request: Request, project_id: str) -> Response:
    """One project, archived or not."""
    admin = admin_context(request)
    check_query(request)
    async with admin.reading() as session:
        project = await projects.get_project(session, admin.organization_id, project_id)
    return json_response(project_object(project))


@router.post("/{project_id}", summary="Modify a project")
@shapes(ProjectObject, ProjectUpdate)
async def modify_project(request: Request, project_id: str) -> Response:
    """Set its name, or whether its prompts may be sampled."""
    admin = admin_context(request)
    check_query(request)
    asked = await admin.gateway.read(request, ProjectUpdate)
    async with admin.audited_change() as change:
        changes = asked.model_dump(exclude_none=True)
        project = await projects.change_project(change, admin.organization_id, project_id, changes)
    return json_response(project_object(project))


@router.post("/{project_id}/archive", summary="Archive a project")
@shapes(ProjectObject)
async def archive_project(request: Request, project_id: str) -> Response:
    """Its keys stop working; what it stores stays."""
    admin = admin_context(request)
    check_query(request)
    async with admin.audited_change() as change:
        project = await projects.archive_project(change, admin.organization_id, project_id)
    return json_response(project_object(project))
