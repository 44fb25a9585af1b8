"""Who work that is done later acts for: a batch goes on in its maker's name as long as their key is valid."""

from __future__ import annotations

from sqlalchemy import select

from kvarn.store.engine import Store
from kvarn.store.models import ApiKey, Organization, Project
from kvarn.store.owner import Owner, Principal


async def find_bearer(store: Store, owner: Owner, key_id: str | None) -> Principal | None:
    """The principal of a key as it is now; None where it is revoked, expired or gone, or its project archived.

    Work without a key (of an open server) acts for its project.
    """
    async with store.reading() as session:
        organization = await session.get(Organization, owner.organization_id)
        project = await session.get(Project, owner.project_id)
        if organization is None or organization.archived_at or project is None or project.archived_at:
            return None
        principal = Principal(
            owner,
            key_id=key_id,
            weight=organization.weight,
            priority=organization.priority,
            cache_salt=organization.cache_salt,
            log_prompts=project.log_prompts,
        )
        if key_id is None:
            return principal
        now = int(store.now())
        valid = select(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
        key = await session.scalar(valid)
        return principal if key is not None and (key.expires_at is None or key.expires_at > now) else None
