"""An organisation cannot lock itself out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.models import ApiKey, User
from kvarn.store.owner import Owner, Role
from kvarn.store.repositories.acts import Act, Actor, acting
from kvarn.store.repositories.administrators import has_admin_key
from kvarn.store.repositories.keys import KeyRequest, add_key, get_key, revoke_key
from kvarn.store.repositories.projects import add_project, archive_project
from kvarn.store.repositories.tenants import change_organization, create_organization
from kvarn.store.repositories.users import add_member, add_user, change_user, delete_user, remove_member

ACTOR = Actor("test")


class Tenant:
    """An organisation whose administrator Ada has her key in the project `ops`."""

    def __init__(self, store: Store, owner: Owner) -> None:
        self.store = store
        self.id, self.default_project = owner.organization_id, owner.project_id

    async def furnish(self) -> Tenant:
        async with acting(self.store, ACTOR) as act:
            self.ops = (await add_project(act, self.id, "ops")).id
            self.ada = await self.person(act, "ada", Role.ADMIN, self.ops)
            self.key = await self.admin_key(act, self.ops, user_id=self.ada.id)
        return self

    async def person(self, act: Act, name: str, role: Role, project_id: str) -> User:
        user = await add_user(act, self.id, f"{name}@example.org", name, role)
        await act.session.flush()
        await add_member(act, self.id, project_id, user, "owner")
        return user

    async def admin_key(self, act: Act, project_id: str, **asked) -> ApiKey:
        return (await add_key(act, self.id, project_id, KeyRequest(name="k", role=Role.ADMIN, **asked)))[0]

    async def has_administrator(self) -> bool:
        async with self.store.reading() as session:
            return await has_admin_key(session, self.id, self.store.now())


@pytest.fixture
async def tenant(store: Store) -> Tenant:
    return await Tenant(store, (await create_organization(store, "a")).owner).furnish()


Change = Callable[[Act, Tenant], Awaitable[object]]
ENDS: dict[str, Change] = {
    "revoking the key": lambda act, tenant: revoke_key(act, tenant.id, tenant.key.id, admin=True),
    "archiving its project": lambda act, tenant: archive_project(act, tenant.id, tenant.ops),
    "demoting its user": lambda act, tenant: change_user(act, tenant.id, tenant.ada.id, Role.MEMBER),
    "deleting its user": lambda act, tenant: delete_user(act, tenant.id, tenant.ada.id),
    "its user leaving the project": lambda act, tenant: remove_member(act, tenant.id, tenant.ops, tenant.ada.id),
}


@pytest.mark.parametrize("way", ENDS)
async def test_what_would_end_the_last_administrators_key_is_refused(tenant: Tenant, way: str) -> None:
    with pytest.raises(ConflictError, match="last administrator"):
        async with acting(tenant.store, ACTOR) as act:
            await ENDS[way](act, tenant)
    assert await tenant.has_administrator()


@pytest.mark.parametrize("way", ENDS)
async def test_it_is_done_where_there_is_another(tenant: Tenant, way: str) -> None:
    async with acting(tenant.store, ACTOR) as act:
        spare = await tenant.admin_key(act, tenant.default_project)
    async with acting(tenant.store, ACTOR) as act:
        await ENDS[way](act, tenant)
    with pytest.raises(ConflictError, match="last administrator"):
        async with acting(tenant.store, ACTOR) as act:
            await revoke_key(act, tenant.id, spare.id, admin=True)


async def test_keys_that_grant_nothing_are_no_administrators(tenant: Tenant) -> None:
    async with acting(tenant.store, ACTOR) as act:
        demoted = await tenant.person(act, "bob", Role.ADMIN, tenant.default_project)
        closed = (await add_project(act, tenant.id, "closed")).id
        await act.session.flush()
        await tenant.admin_key(act, tenant.default_project, user_id=demoted.id)
        await act.session.flush()
        await change_user(act, tenant.id, demoted.id, Role.MEMBER)
        await tenant.admin_key(act, tenant.default_project, lifetime_s=-1)
        await tenant.admin_key(act, closed)
        revoked = await tenant.admin_key(act, tenant.default_project)
        await add_key(act, tenant.id, tenant.default_project, KeyRequest(name="k", role=Role.MEMBER))
    async with acting(tenant.store, ACTOR) as act:
        await archive_project(act, tenant.id, closed)
        await revoke_key(act, tenant.id, revoked.id, admin=True)
        with pytest.raises(NotFoundError):
            await get_key(act.session, tenant.id, revoked.id, admin=True)
    with pytest.raises(ConflictError, match="last administrator"):
        async with acting(tenant.store, ACTOR) as act:
            await revoke_key(act, tenant.id, tenant.key.id, admin=True)


async def test_nobody_administers_an_organisation_that_is_archived(tenant: Tenant) -> None:
    async with acting(tenant.store, ACTOR) as act:
        await change_organization(act, tenant.id, {"archived": True})
    assert not await tenant.has_administrator()
