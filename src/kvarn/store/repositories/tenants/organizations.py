"""Organisations: the tenants."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError
from kvarn.store.ids import DEFAULT_ORGANIZATION, DEFAULT_PROJECT, new_id
from kvarn.store.models import Organization, Project
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange, audited_change

_THE_SERVER = Actor("server")


async def ensure_default_organization(store: Store) -> bool:
    """Make the organisation and the project that requests without a key belong to, where they are missing: the database
    is new. Whether they were."""
    async with store.reading() as session:  # most often it is there: no need to wait for a writer
        if await session.get(Organization, DEFAULT_ORGANIZATION) is not None:
            return False
    async with audited_change(store, _THE_SERVER) as change:
        if await change.session.get(Organization, DEFAULT_ORGANIZATION) is not None:
            return False
        await add_organization(change, "Default", ids=(DEFAULT_ORGANIZATION, DEFAULT_PROJECT))
        return True


async def add_organization(
    change: AuditedChange,
    name: str,
    *,
    weight: float = 1.0,
    priority: int = 0,
    retention_days: int | None = None,
    ids: tuple[str, str] | None = None,
) -> tuple[Organization, Project]:
    organization_id, project_id = ids or (new_id("org-"), new_id("proj_"))
    organization = Organization(
        id=organization_id,
        name=name,
        created_at=change.now,
        weight=weight,
        priority=priority,
        retention_days=retention_days,
        cache_salt=secrets.token_hex(16),
    )
    change.session.add(organization)
    await change.session.flush()
    project = Project(
        id=project_id, organization_id=organization_id, name="Default project", created_at=change.now, is_default=True
    )
    change.session.add(project)
    data = {"name": name, "weight": weight, "priority": priority, "retention_days": retention_days}
    change.record("organization.created", organization_id, organization_id, data=data)
    return organization, project


async def list_organizations(session: AsyncSession, cursor: Cursor) -> Page[Organization]:
    return await read_page(session, select(Organization), cursor, (Organization.created_at, Organization.id))


async def get_organization(session: AsyncSession, organization_id: str) -> Organization:
    query = select(Organization).where(Organization.id == organization_id)
    return await find_one(session, query, f"No such organization: {organization_id!r}.")


async def names_of_organizations(session: AsyncSession, organization_ids: Collection[str]) -> dict[str, str]:
    """Names by id, of those that exist."""
    query = select(Organization.id, Organization.name).where(Organization.id.in_(organization_ids))
    return {row.id: row.name for row in await session.execute(query)}


async def default_project_id(session: AsyncSession, organization_id: str) -> str:
    query = select(Project.id).where(Project.organization_id == organization_id, Project.is_default)
    return await find_one(session, query, f"No such organization: {organization_id!r}.")


async def change_organization(change: AuditedChange, organization_id: str, changes: dict[str, Any]) -> Organization:
    organization = await get_organization(change.session, organization_id)
    fields = dict(changes)
    archived = fields.pop("archived", None)
    if archived and organization_id == DEFAULT_ORGANIZATION:
        raise ConflictError("The default organization cannot be archived: its administrators run the platform.")
    if archived is not None:
        fields["archived_at"] = (organization.archived_at or change.now) if archived else None
    for name, value in fields.items():
        setattr(organization, name, value)
    change.record("organization.updated", organization_id, organization_id, changes_requested=changes)
    return organization
