"""API keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.errors import ConflictError
from kvarn.store.ids import new_id
from kvarn.store.keys import is_key, lookup_of, new_key
from kvarn.store.models import ApiKey, User
from kvarn.store.owner import UNRESTRICTED, Role, Scopes
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one
from kvarn.store.repositories.tenants.administrators import keeping_an_administrator
from kvarn.store.repositories.tenants.audited_changes import AuditedChange
from kvarn.store.repositories.tenants.projects import get_active_project

_ORDER = (ApiKey.created_at, ApiKey.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequest:
    name: str
    role: Role = Role.SERVICE
    user_id: str | None = None
    """Its owner: a user or a service account of the organisation."""
    scopes: Scopes = UNRESTRICTED
    lifetime_s: int | None = None
    """Seconds after which it expires; None: never."""


async def add_key(
    change: AuditedChange, organization_id: str, project_id: str, request: KeyRequest
) -> tuple[ApiKey, str]:
    """A new key and its value, which cannot be read again. Raises `ConflictError` where the project is archived, or an
    administrator's key is to have scopes, or a user who is none."""
    await get_active_project(change, organization_id, project_id)
    scopes, user = scopes_as_json(request.scopes), None
    if request.user_id is not None:
        theirs = select(User).where(User.organization_id == organization_id, User.id == request.user_id)
        user = await find_one(change.session, theirs, f"No such user: {request.user_id!r}.")
    if request.role is Role.ADMIN and scopes:
        raise ConflictError("An administrator's key cannot have scopes: it could make itself one without them.")
    if request.role is Role.ADMIN and user is not None and user.role != str(Role.ADMIN):
        raise ConflictError(f"The user {user.id!r} is no administrator of the organization.")
    made = new_key()
    key = ApiKey(
        id=new_id("key_"),
        organization_id=organization_id,
        project_id=project_id,
        user=user,
        name=request.name,
        lookup=made.lookup,
        digest=made.digest,
        redacted=made.redacted,
        role=str(request.role),
        scopes=scopes,
        created_at=change.now,
        expires_at=None if request.lifetime_s is None else change.now + request.lifetime_s,
    )
    change.session.add(key)
    data = {"name": key.name, "role": key.role, "expires_at": key.expires_at, "scopes": _scope_names(scopes)}
    change.record("api_key.created", organization_id, key.id, project_id=project_id, data=data)
    return key, made.value


async def list_keys(
    session: AsyncSession,
    organization_id: str,
    cursor: Cursor,
    *,
    project_id: str | None = None,
    admin: bool = False,
) -> Page[ApiKey]:
    return await read_page(session, _query(organization_id, project_id, admin), cursor, _ORDER)


async def list_all_keys(session: AsyncSession, organization_id: str) -> list[ApiKey]:
    query = select(ApiKey).where(ApiKey.organization_id == organization_id).order_by(*_ORDER)
    return list(await session.scalars(query))


async def labels_of_keys(session: AsyncSession, key_ids: Collection[str]) -> dict[str, tuple[str, str]]:
    """Name and shortened value by id, of those that exist."""
    query = select(ApiKey.id, ApiKey.name, ApiKey.redacted).where(ApiKey.id.in_(key_ids))
    return {row.id: (row.name, row.redacted) for row in await session.execute(query)}


async def get_key(
    session: AsyncSession, organization_id: str, key_id: str, *, project_id: str | None = None, admin: bool = False
) -> ApiKey:
    query = _query(organization_id, project_id, admin).where(ApiKey.id == key_id)
    return await find_one(session, query, f"No such API key: {key_id!r}.")


async def find_key(session: AsyncSession, key: str) -> ApiKey:
    """A key of whatever organisation, by its id or by itself: for the administrator of the machine."""
    if is_key(key):
        return await find_one(session, select(ApiKey).where(ApiKey.lookup == lookup_of(key)), "No such API key.")
    return await find_one(session, select(ApiKey).where(ApiKey.id == key), f"No such API key: {key!r}.")


async def revoke_key(
    change: AuditedChange, organization_id: str, key_id: str, *, project_id: str | None = None, admin: bool = False
) -> ApiKey:
    """Revoke a key for good. Raises `ConflictError` for the last with which the organisation can be administered."""
    async with keeping_an_administrator(change, organization_id):
        key = await get_key(change.session, organization_id, key_id, project_id=project_id, admin=admin)
        key.revoked_at = change.now
        change.record("api_key.deleted", organization_id, key_id, project_id=key.project_id, name=key.name)
    return key


async def revoke_keys_of(change: AuditedChange, project_id: str, user_id: str) -> None:
    mine = select(ApiKey).where(ApiKey.project_id == project_id, ApiKey.user_id == user_id, ApiKey.revoked_at.is_(None))
    for key in await change.session.scalars(mine):
        key.revoked_at = change.now
        change.record("api_key.deleted", key.organization_id, key.id, project_id=project_id, name=key.name)


async def mark_used(session: AsyncSession, used_at: Mapping[str, int]) -> None:
    """Write when keys were last used (seconds since 1970), by id; never an earlier time than there is. No
    audited change."""
    keys = ApiKey.__table__
    later = or_(keys.c.last_used_at.is_(None), keys.c.last_used_at < bindparam("at"))
    change = update(ApiKey.__table__).where(keys.c.id == bindparam("key_id"), later)  # type: ignore[arg-type]
    marks = [{"key_id": key_id, "at": used_at[key_id]} for key_id in sorted(used_at)]  # all gateways lock in one order
    # On the connection: the session would make of each mark a statement of its own.
    await (await session.connection()).execute(change.values(last_used_at=bindparam("at")), marks)


def is_in_force(key: ApiKey, now: float) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > now)


def scopes_as_json(scopes: Scopes) -> dict[str, Any]:
    """Scopes as a row holds them: without those that restrict nothing."""
    parts = {"models": scopes.models, "endpoints": scopes.endpoints, "adapters": scopes.adapters, "tools": scopes.tools}
    return {name: list(values) for name, values in parts.items() if values is not None}


def scopes_from_json(stored: Mapping[str, list[str]]) -> Scopes:
    return Scopes(**{name: tuple(values) for name, values in stored.items()})


def _query(organization_id: str, project_id: str | None, admin: bool) -> Select[ApiKey]:
    query = select(ApiKey).where(ApiKey.organization_id == organization_id, ApiKey.revoked_at.is_(None))
    query = query.where(ApiKey.role == str(Role.ADMIN) if admin else ApiKey.role != str(Role.ADMIN))
    return query if project_id is None else query.where(ApiKey.project_id == project_id)


def _scope_names(scopes: Mapping[str, list[str]]) -> list[str]:
    """In one list, as OpenAI's audit log has them: `models:tiny`."""
    return [f"{kind}:{value}" for kind, values in scopes.items() for value in values]
