"""An organisation never loses its last administrator, without whom it could not make another."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.errors import ConflictError
from kvarn.store.models import ApiKey, Organization, Project, User
from kvarn.store.owner import Role
from kvarn.store.repositories.tenants.audited_changes import AuditedChange


@asynccontextmanager
async def keeping_an_administrator(change: AuditedChange, organization_id: str) -> AsyncGenerator[None, None]:
    """A change after which somebody must still be able to administer the organisation, if anybody was before. Raises
    `ConflictError` where nobody could."""
    before = await has_admin_key(change.session, organization_id, change.now)
    yield
    await change.session.flush()
    if before and not await has_admin_key(change.session, organization_id, change.now):
        raise ConflictError("This would end the organization's last administrator's key: make another one first.")


async def has_admin_key(session: AsyncSession, organization_id: str, now: float) -> bool:
    """Whether somebody has a key that administers the organisation at the time `now`, as `principals.py` reads them."""
    query = (
        select(ApiKey.id)
        .join(Project, Project.id == ApiKey.project_id)
        .join(Organization, Organization.id == ApiKey.organization_id)
        .outerjoin(User, User.id == ApiKey.user_id)
        .where(
            ApiKey.organization_id == organization_id,
            ApiKey.role == str(Role.ADMIN),
            or_(ApiKey.user_id.is_(None), User.role == str(Role.ADMIN)),
            ApiKey.revoked_at.is_(None),
            or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now),
            Project.archived_at.is_(None),
            Organization.archived_at.is_(None),
        )
        .limit(1)
    )
    return await session.scalar(query) is not None
