"""Organisations and their projects."""

from __future__ import annotations

import secrets

from kvarn.store.engine import Store
from kvarn.store.ids import DEFAULT_ORGANIZATION, DEFAULT_PROJECT, new_id
from kvarn.store.models import Organization, Project
from kvarn.store.owner import Owner, Principal, Role


async def create_organization(store: Store, name: str) -> Principal:
    """A new organisation with one project; the principal may do everything in both."""
    now, organization_id, project_id = int(store.now()), new_id("org-"), new_id("proj_")
    salt = secrets.token_hex(16)
    async with store.transaction() as session:
        session.add(Organization(id=organization_id, name=name, created_at=now, cache_salt=salt))
        await session.flush()
        session.add(Project(id=project_id, organization_id=organization_id, name="Default project", created_at=now))
    return Principal(Owner(organization_id, project_id), Role.ADMIN, cache_salt=salt)


async def ensure_default_organization(store: Store) -> None:
    """Make the organisation and the project that requests without a key belong to, where they are missing."""
    async with store.transaction() as session:
        if await session.get(Organization, DEFAULT_ORGANIZATION) is not None:
            return
        now = int(store.now())
        salt = secrets.token_hex(16)
        session.add(Organization(id=DEFAULT_ORGANIZATION, name="Default", created_at=now, cache_salt=salt))
        await session.flush()
        session.add(
            Project(id=DEFAULT_PROJECT, organization_id=DEFAULT_ORGANIZATION, name="Default project", created_at=now)
        )
