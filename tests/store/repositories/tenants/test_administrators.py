"""An organisation cannot lock itself out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.models import ApiKey, User
from kvarn.store.owner import Owner, Role
from kvarn.store.repositories.tenants.administrators import has_admin_key
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, get_key, revoke_key
from kvarn.store.repositories.tenants.organizations import change_organization
from kvarn.store.repositories.tenants.projects import add_project, archive_project
from kvarn.store.repositories.tenants.users import add_member, add_user, change_user, delete_user, remove_member
from new_tenants import create_organization

ACTOR = Actor("test")


class Tenant:
    """An organisation whose administrator Ada has her key in the project `ops`."""

    def __init__(self, store: Store, owner: Owner) -> None:
        self.store = store
        self.id, self.default_project = owner.organization_id, owner.project_id

    async def furnish(self) -> Tenant:
        async with audited_change(self.store, ACTOR) as change:
            self.ops = (await add_project(change, self.id, "ops")).id
            self.ada = await self.person(change, "ada", Role.ADMIN, self.ops)
            self.key = await self.admin_key(change, self.ops, user_id=self.ada.id)
        return self

    async def person(self, change: AuditedChange, name: str, role: Role, project_id: str) -> User:
        user = await add_user(change, self.id, f"{name}@example.org", name, role)
        await change.session.flush()
        await add_member(change, self.id, project_id, user, "owner")
        return user

    async def admin_key(self, change: AuditedChange, project_id: str, **asked) -> ApiKey:
        return (await add_key(change, self.id, project_id, KeyRequest(name="k", role=Role.ADMIN, **asked)))[0]

    async def has_administrator(self) -> bool:
        async with self.store.reading() as session:
            return await has_admin_key(session, self.id, self.store.now())


@pytest.fixture
async def tenant(store: Store) -> Tenant:
    return await Tenant(store, (await create_organization(store, "a")).owner).furnish()


Change = Callable[[AuditedChange, Tenant], Awaitable[object]]
ENDS: dict[str, Change] = {
    "revoking the key": lambda change, tenant: revoke_key(change, tenant.id, tenant.key.id, admin=True),
    "archiving its project": lambda change, tenant: archive_project(change, tenant.id, tenant.ops),
    "demoting its user": lambda change, tenant: change_user(change, tenant.id, tenant.ada.id, Role.MEMBER),
    "deleting its user": lambda change, tenant: delete_user(change, tenant.id, tenant.ada.id),
    "its user leaving the project": lambda change, tenant: remove_member(change, tenant.id, tenant.ops, tenant.ada.id),
}


@pytest.mark.parametrize("way", ENDS)
async def test_what_would_end_the_last_administrators_key_is_refused(tenant: Tenant, way: str) -> None:
    with pytest.raises(ConflictError, match="last administrator"):
        async with audited_change(tenant.store, ACTOR) as change:
            await ENDS[way](change, tenant)
    assert await tenant.has_administrator()


@pytest.mark.parametrize("way", ENDS)
async def test_it_is_done_where_there_is_another(tenant: Tenant, way: str) -> None:
    async with audited_change(tenant.store, ACTOR) as change:
        spare = await tenant.admin_key(change, tenant.default_project)
    async with audited_change(tenant.store, ACTOR) as change:
        await ENDS[way](change, tenant)
    with pytest.raises(ConflictError, match="last administrator"):
        async with audited_change(tenant.store, ACTOR) as change:
            await revoke_key(change, tenant.id, spare.id, admin=True)


async def test_keys_that_grant_nothing_are_no_administrators(tenant: Tenant) -> None:
    async with audited_change(tenant.store, ACTOR) as change:
        demoted = await tenant.person(change, "bob", Role.ADMIN, tenant.default_project)
        closed = (await add_project(change, tenant.id, "closed")).id
        await change.session.flush()
        await tenant.admin_key(change, tenant.default_project, user_id=demoted.id)
        await change.session.flush()
        await change_user(change, tenant.id, demoted.id, Role.MEMBER)
        await tenant.admin_key(change, tenant.default_project, lifetime_s=-1)
        await tenant.admin_key(change, closed)
        revoked = await tenant.admin_key(change, tenant.default_project)
        await add_key(change, tenant.id, tenant.default_project, KeyRequest(name="k", role=Role.MEMBER))
    async with audited_change(tenant.store, ACTOR) as change:
        await archive_project(change, tenant.id, closed)
        await revoke_key(change, tenant.id, revoked.id, admin=True)
        with pytest.raises(NotFoundError):
            await get_key(change.session, tenant.id, revoked.id, admin=True)
    with pytest.raises(ConflictError, match="last administrator"):
        async with audited_change(tenant.store, ACTOR) as change:
            await revoke_key(change, tenant.id, tenant.key.id, admin=True)


async def test_nobody_administers_an_organisation_that_is_archived(tenant: Tenant) -> None:
    async with audited_change(tenant.store, ACTOR) as change:
        await change_organization(change, tenant.id, {"archived": True})
    assert not await tenant.has_administrator()
