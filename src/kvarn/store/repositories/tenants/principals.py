"""From a key to whom it acts for, with everything that holds for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.ids import DEFAULT_ORGANIZATION, DEFAULT_PROJECT
from kvarn.store.keys import is_session_lookup
from kvarn.store.models import ApiKey, ConsoleSession, Organization, Project, ProjectMember, User
from kvarn.store.owner import ANYBODY, Owner, Principal, Role
from kvarn.store.repositories.tenants.keys import scopes_from_json
from kvarn.store.repositories.tenants.rate_limits import limit_rules_of


@dataclass(frozen=True, slots=True)
class Grant:
    """The row of a key, or of a session of the console, with the principal that it acts for."""

    organization_id: str
    digest: str  # SHA-256 of the key, or of the session's token
    principal: Principal | None
    """None: the key is revoked or expired, its project or organisation archived, or the session over."""
    expires_at: int | None

    def principal_at(self, now: float) -> Principal | None:
        return self.principal if self.expires_at is None or now < self.expires_at else None


async def find_grant(session: AsyncSession, lookup: str, now: float) -> Grant | None:
    """The grant of a key or session at the time `now`, found by its first part; None where none begins so."""
    if is_session_lookup(lookup):
        return await _find_session(session, lookup, now)
    return await _find(session, ApiKey.lookup == lookup, now)


async def find_default_principal(session: AsyncSession) -> Principal | None:
    """The principal of requests to an open server: the default organisation's administrator. None before it exists."""
    organization = await session.get(Organization, DEFAULT_ORGANIZATION)
    project = await session.get(Project, DEFAULT_PROJECT)
    if organization is None or project is None:
        return None
    principal = await _principal_of(session, organization, project)
    return replace(principal, role=ANYBODY.role, priority=ANYBODY.priority)


async def find_bearer(store: Store, owner: Owner, key_id: str | None) -> Principal | None:
    """The principal of a key as it is now, for a batch or a response in the background, which goes on in its maker's
    name; None where it is revoked, expired or gone, or its project archived.

    Work without a key, which an open server took, acts for its project.
    """
    async with store.reading() as session:
        if key_id is not None:
            grant = await _find(session, ApiKey.id == key_id, store.now())
            principal = None if grant is None else grant.principal
            return principal if principal is not None and principal.owner == owner else None
        organization = await session.get(Organization, owner.organization_id)
        project = await session.get(Project, owner.project_id)
        if organization is None or organization.archived_at or project is None or project.archived_at:
            return None
        return await _principal_of(session, organization, project)


async def _find(session: AsyncSession, which: ColumnElement[bool], now: float) -> Grant | None:
    query = (
        select(ApiKey, Project, Organization)
        .join(Project, Project.id == ApiKey.project_id)
        .join(Organization, Organization.id == ApiKey.organization_id)
        .where(which)
    )
    row = (await session.execute(query)).first()
    if row is None:
        return None
    key, project, organization = row
    ended = [key.revoked_at, project.archived_at, organization.archived_at]
    if any(at is not None for at in ended) or (key.expires_at is not None and key.expires_at <= now):
        return Grant(organization.id, key.digest, None, key.expires_at)
    principal = await _principal_of(session, organization, project, key.id)
    scopes = scopes_from_json(key.scopes)
    principal = replace(principal, role=_role(key), user_id=key.user_id, key_id=key.id, scopes=scopes)
    return Grant(organization.id, key.digest, principal, key.expires_at)


async def _find_session(session: AsyncSession, lookup: str, now: float) -> Grant | None:
    row = await session.get(ConsoleSession, lookup)
    if row is None:
        return None
    grant = Grant(row.organization_id, row.digest, None, row.expires_at)
    if row.expires_at <= now:
        return grant
    if row.key_id is not None:
        of_key = await _find(session, ApiKey.id == row.key_id, now)
        if of_key is None or of_key.principal is None:
            return grant
        ends = min(row.expires_at, of_key.expires_at or row.expires_at)
        return replace(grant, principal=of_key.principal, expires_at=ends)
    if row.user_id is not None:
        return replace(grant, principal=await find_person(session, row.user_id))
    anybody = await find_default_principal(session)  # a key of the configuration
    return grant if anybody is None else replace(grant, principal=replace(anybody, role=Role.SERVICE, priority=0))


async def find_person(session: AsyncSession, user_id: str) -> Principal | None:
    """The principal of a person who is signed in without a key: an administrator acts in the organisation's first
    project, a member in the first that they joined. None where there is no such project (any more)."""
    user = await session.get(User, user_id)
    if user is None or user.kind != "person":
        return None
    organization = await session.get(Organization, user.organization_id)
    query = select(Project).where(Project.organization_id == user.organization_id, Project.archived_at.is_(None))
    if user.role == Role.ADMIN:
        query = query.where(Project.is_default)
    else:
        query = query.join(ProjectMember, ProjectMember.project_id == Project.id).where(
            ProjectMember.user_id == user_id
        )
        query = query.order_by(ProjectMember.created_at, Project.created_at, Project.id)
    project = await session.scalar(query.limit(1))
    if organization is None or organization.archived_at is not None or project is None:
        return None
    principal = await _principal_of(session, organization, project)
    return replace(principal, role=Role(user.role), user_id=user_id)


async def _principal_of(
    session: AsyncSession, organization: Organization, project: Project, *limited: str
) -> Principal:
    return Principal(
        Owner(organization.id, project.id),
        weight=organization.weight,
        priority=organization.priority,
        cache_salt=_cache_salt(organization, project),
        limits=await limit_rules_of(session, (organization.id, project.id, *limited)),
        log_prompts=project.log_prompts,
        project_tools=None if project.tools is None else tuple(project.tools),
        response_cache=project.response_cache,
    )


def _cache_salt(organization: Organization, project: Project) -> str:
    """One salt for all projects, but for those that gave up what was cached of their prompts."""
    given_up = project.cache_generation
    return organization.cache_salt if given_up is None else f"{organization.cache_salt}.{project.id}.{given_up}"


def _role(key: ApiKey) -> Role:
    """An administrator's key is one as long as its user is an administrator."""
    demoted = key.role == Role.ADMIN and key.user is not None and key.user.role != Role.ADMIN
    return Role.MEMBER if demoted else Role(key.role)
