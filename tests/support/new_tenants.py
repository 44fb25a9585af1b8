"""Organisations for tests."""

from __future__ import annotations

from kvarn.store.engine import Store
from kvarn.store.owner import Owner, Principal, Role
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.organizations import add_organization


async def create_organization(store: Store, name: str) -> Principal:
    """A new organisation with one project; the principal may do everything in both."""
    async with audited_change(store, Actor("server")) as change:
        organization, project = await add_organization(change, name)
    return Principal(Owner(organization.id, project.id), Role.ADMIN, cache_salt=organization.cache_salt)
