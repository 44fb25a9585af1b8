"""Projects of an organisation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.errors import ConflictError
from kvarn.store.ids import new_id
from kvarn.store.models import Project
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one
from kvarn.store.repositories.tenants.administrators import keeping_an_administrator
from kvarn.store.repositories.tenants.audited_changes import AuditedChange


async def list_projects(
    session: AsyncSession, organization_id: str, cursor: Cursor, *, archived: bool = False
) -> Page[Project]:
    query = select(Project).where(Project.organization_id == organization_id)
    if not archived:
        query = query.where(Project.archived_at.is_(None))
    return await read_page(session, query, cursor, (Project.created_at, Project.id))


async def names_of_projects(session: AsyncSession, project_ids: Collection[str]) -> dict[str, str]:
    """Names by id, of those that exist."""
    query = select(Project.id, Project.name).where(Project.id.in_(project_ids))
    return {row.id: row.name for row in await session.execute(query)}


async def get_project(session: AsyncSession, organization_id: str, project_id: str) -> Project:
    query = select(Project).where(Project.organization_id == organization_id, Project.id == project_id)
    return await find_one(session, query, f"No such project: {project_id!r}.")


async def find_projects(session: AsyncSession, project_ids: Collection[str]) -> Sequence[Project]:
    """Those that exist, whoever they belong to."""
    return (await session.scalars(select(Project).where(Project.id.in_(project_ids)))).all()


async def get_active_project(change: AuditedChange, organization_id: str, project_id: str) -> Project:
    """A project that something is to be added to. Raises `ConflictError` where it is archived."""
    project = await get_project(change.session, organization_id, project_id)
    if project.archived_at is not None:
        raise ConflictError(f"The project {project_id!r} is archived.")
    return project


async def add_project(change: AuditedChange, organization_id: str, name: str) -> Project:
    project = Project(id=new_id("proj_"), organization_id=organization_id, name=name, created_at=change.now)
    change.session.add(project)
    change.record("project.created", organization_id, project.id, project_id=project.id, data={"name": name})
    return project


async def change_project(
    change: AuditedChange, organization_id: str, project_id: str, changes: dict[str, Any]
) -> Project:
    project = await get_active_project(change, organization_id, project_id)
    for name, value in changes.items():
        setattr(project, name, value)
    change.record("project.updated", organization_id, project_id, project_id=project_id, changes_requested=changes)
    return project


async def give_up_cached(change: AuditedChange, organization_id: str, project_id: str) -> None:
    """Find nothing any more that is cached of a project: no answers, no KV of its prompts; gateways hear of it."""
    project = await get_project(change.session, organization_id, project_id)
    project.cache_generation = (project.cache_generation or 0) + 1
    change.record("project.cache_cleared", organization_id, project_id, project_id=project_id)


async def archive_project(change: AuditedChange, organization_id: str, project_id: str) -> Project:
    """Archive a project: its keys stop working, its objects stay. Done again, it changes nothing."""
    project = await get_project(change.session, organization_id, project_id)
    if project.is_default:
        raise ConflictError("The default project cannot be archived: the administrators' keys belong to it.")
    if project.archived_at is None:
        async with keeping_an_administrator(change, organization_id):
            project.archived_at = change.now
            change.record("project.archived", organization_id, project_id, project_id=project_id)
    return project
