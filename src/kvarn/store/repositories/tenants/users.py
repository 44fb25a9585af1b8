"""People and service accounts of an organisation, and their places in projects.

Functions that take a project raise NotFoundError where the organisation has none of that id, and those that change a
member also where the project has no such member.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.errors import ConflictError
from kvarn.store.ids import new_id
from kvarn.store.models import ProjectMember, User
from kvarn.store.owner import Role
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one
from kvarn.store.repositories.tenants.administrators import keeping_an_administrator
from kvarn.store.repositories.tenants.audited_changes import AuditedChange
from kvarn.store.repositories.tenants.keys import revoke_keys_of
from kvarn.store.repositories.tenants.projects import get_active_project, get_project

Kind = Literal["person", "service_account"]
_ORDER = (User.created_at, User.id)


async def list_users(
    session: AsyncSession, organization_id: str, cursor: Cursor, emails: Collection[str] = ()
) -> Page[User]:
    query = _people(organization_id)
    if emails:
        query = query.where(User.email.in_([email.lower() for email in emails]))
    return await read_page(session, query, cursor, _ORDER)


async def get_user(session: AsyncSession, organization_id: str, user_id: str) -> User:
    return await find_one(session, _people(organization_id).where(User.id == user_id), f"No such user: {user_id!r}.")


async def names_of_users(session: AsyncSession, user_ids: Collection[str]) -> dict[str, str]:
    """Names by id, of those that exist: people and service accounts."""
    query = select(User.id, User.name).where(User.id.in_(user_ids))
    return {row.id: row.name for row in await session.execute(query)}


async def find_user(session: AsyncSession, organization_id: str, email: str) -> User:
    query = _people(organization_id).where(User.email == email.lower())
    return await find_one(session, query, f"No such user: {email!r}.")


async def add_user(change: AuditedChange, organization_id: str, email: str, name: str, role: Role) -> User:
    taken = select(User.id).where(User.organization_id == organization_id, User.email == email.lower())
    if await change.session.scalar(taken) is not None:
        raise ConflictError(f"There is a user with the address {email!r} already.")
    user = _new_user(change, organization_id, name, role, email=email.lower())
    change.record("user.added", organization_id, user.id, data={"role": str(role), "email": user.email})
    return user


async def change_user(change: AuditedChange, organization_id: str, user_id: str, role: Role) -> User:
    async with keeping_an_administrator(change, organization_id):
        user = await get_user(change.session, organization_id, user_id)
        user.role = str(role)
        change.record("user.updated", organization_id, user_id, changes_requested={"role": str(role)})
    return user


async def delete_user(change: AuditedChange, organization_id: str, user_id: str) -> None:
    async with keeping_an_administrator(change, organization_id):
        await change.session.delete(await get_user(change.session, organization_id, user_id))
        change.record("user.deleted", organization_id, user_id)


async def list_members(
    session: AsyncSession, organization_id: str, project_id: str, cursor: Cursor, kind: Kind
) -> Page[ProjectMember]:
    await get_project(session, organization_id, project_id)
    return await read_page(session, _members(project_id).where(User.kind == kind), cursor, _ORDER)


async def get_member(
    session: AsyncSession, organization_id: str, project_id: str, user_id: str, kind: Kind | None = None
) -> ProjectMember:
    await get_project(session, organization_id, project_id)
    query = _members(project_id).where(User.id == user_id)
    missing = f"No such {(kind or 'member').replace('_', ' ')} in the project: {user_id!r}."
    return await find_one(session, query if kind is None else query.where(User.kind == kind), missing)


async def add_member(
    change: AuditedChange, organization_id: str, project_id: str, user: User, role: str
) -> ProjectMember:
    await get_active_project(change, organization_id, project_id)
    if await change.session.get(ProjectMember, (project_id, user.id)) is not None:
        raise ConflictError(f"The user {user.id!r} is in the project already.")
    change.record("user.added", organization_id, user.id, project_id=project_id, data={"role": role})
    return _new_member(change, project_id, user, role)


async def change_member(
    change: AuditedChange,
    organization_id: str,
    project_id: str,
    user_id: str,
    kind: Kind,
    *,
    role: str | None = None,
    name: str | None = None,
) -> ProjectMember:
    member = await get_member(change.session, organization_id, project_id, user_id, kind)
    member.role, member.user.name = role or member.role, name or member.user.name
    wanted = {key: value for key, value in (("name", name), ("role", role)) if value is not None}
    event = "user.updated" if kind == "person" else "service_account.updated"
    change.record(event, organization_id, user_id, project_id=project_id, changes_requested=wanted)
    return member


async def remove_member(change: AuditedChange, organization_id: str, project_id: str, user_id: str) -> None:
    async with keeping_an_administrator(change, organization_id):
        await change.session.delete(await get_member(change.session, organization_id, project_id, user_id, "person"))
        await revoke_keys_of(change, project_id, user_id)
        change.record("user.deleted", organization_id, user_id, project_id=project_id)


async def add_service_account(
    change: AuditedChange, organization_id: str, project_id: str, name: str, role: str
) -> ProjectMember:
    await get_active_project(change, organization_id, project_id)
    user = _new_user(change, organization_id, name, Role.MEMBER, kind="service_account")
    change.record("service_account.created", organization_id, user.id, project_id=project_id, data={"role": role})
    return _new_member(change, project_id, user, role)


async def delete_service_account(change: AuditedChange, organization_id: str, project_id: str, user_id: str) -> None:
    member = await get_member(change.session, organization_id, project_id, user_id, "service_account")
    await change.session.delete(member.user)
    change.record("service_account.deleted", organization_id, user_id, project_id=project_id)


def _people(organization_id: str) -> Select[User]:
    return select(User).where(User.organization_id == organization_id, User.kind == "person")


def _new_user(
    change: AuditedChange,
    organization_id: str,
    name: str,
    role: Role,
    *,
    kind: Kind = "person",
    email: str | None = None,
) -> User:
    user_id = new_id("user-")
    user = User(id=user_id, organization_id=organization_id, kind=kind, name=name, email=email, role=str(role))
    user.created_at = change.now
    change.session.add(user)
    return user


def _members(project_id: str) -> Select[ProjectMember]:
    return (
        select(ProjectMember).join(User, User.id == ProjectMember.user_id).where(ProjectMember.project_id == project_id)
    )


def _new_member(change: AuditedChange, project_id: str, user: User, role: str) -> ProjectMember:
    member = ProjectMember(project_id=project_id, user=user, role=role, created_at=change.now)
    change.session.add(member)
    return member
