"""Who work that is done later acts for: a batch, or a response in the background, goes on in its maker's name for as
long as their key is valid."""

from __future__ import annotations

from kvarn.store.engine import Store
from kvarn.store.models import Organization, Project
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.tenants.principals import find_grant_by_id
from kvarn.store.repositories.tenants.rate_limits import limits_of


async def find_bearer(store: Store, owner: Owner, key_id: str | None) -> Principal | None:
    """The principal of a key as it is now; None where it is revoked, expired or gone, or its project archived.

    Work without a key, which an open server took, acts for its project.
    """
    async with store.reading() as session:
        if key_id is not None:
            grant = await find_grant_by_id(session, key_id, store.now())
            principal = None if grant is None else grant.principal
            return principal if principal is not None and principal.owner == owner else None
        organization = await session.get(Organization, owner.organization_id)
        project = await session.get(Project, owner.project_id)
        if organization is None or organization.archived_at or project is None or project.archived_at:
            return None
        return Principal(
            owner,
            weight=organization.weight,
            priority=organization.priority,
            cache_salt=organization.cache_salt,
            limits=await limits_of(session, (owner.organization_id, owner.project_id)),
            log_prompts=project.log_prompts,
        )
