"""Whom work that is done later acts for, as of the moment at which it is done."""

from __future__ import annotations

from kvarn.store.engine import Store
from kvarn.store.owner import Owner
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.store.repositories.tenants.organizations import change_organization
from kvarn.store.repositories.tenants.principals import find_bearer
from new_tenants import create_organization

ACTOR = Actor("test")


async def make_key(store: Store, owner: Owner) -> str:
    async with audited_change(store, ACTOR) as change:
        key, _ = await add_key(change, owner.organization_id, owner.project_id, KeyRequest(name="k"))
    return key.id


async def test_a_key_acts_until_it_is_revoked_and_for_its_own_project_only(store: Store) -> None:
    owner, other = (await create_organization(store, "a")).owner, (await create_organization(store, "b")).owner
    key_id = await make_key(store, owner)
    found = await find_bearer(store, owner, key_id)
    assert found is not None and (found.owner, found.key_id) == (owner, key_id)
    assert await find_bearer(store, other, key_id) is None
    async with audited_change(store, ACTOR) as change:
        await revoke_key(change, owner.organization_id, key_id)
    assert await find_bearer(store, owner, key_id) is None


async def test_work_without_a_key_acts_for_its_project_until_the_organisation_is_archived(store: Store) -> None:
    tenant = await create_organization(store, "a")
    found = await find_bearer(store, tenant.owner, None)
    assert found is not None and found.owner == tenant.owner
    assert found.cache_salt == tenant.cache_salt != "" and found.key_id is None
    async with audited_change(store, ACTOR) as change:
        await change_organization(change, tenant.organization_id, {"archived": True})
    assert await find_bearer(store, tenant.owner, None) is None
