"""The number that tells caches of keys that something has changed."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import delete, update

from kvarn.store.engine import Store
from kvarn.store.models import Revision
from kvarn.store.repositories.organization_deletion import delete_organization
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange, audited_change
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.store.repositories.tenants.rate_limits import set_limit
from kvarn.store.repositories.tenants.revision import read_revision
from new_tenants import create_organization

ACTOR = Actor("test")


async def revision_of(store: Store) -> int:
    async with store.reading() as session:
        return await read_revision(session)


async def set_a_limit(change: AuditedChange, organization_id: str) -> None:
    await set_limit(change, organization_id, organization_id, "*", {"concurrency": 1})


async def test_a_change_advances_it_and_one_that_fails_does_not(store: Store) -> None:
    organization_id = (await create_organization(store, "a")).organization_id
    before = await revision_of(store)
    with pytest.raises(ValueError, match="thought better"):
        async with audited_change(store, ACTOR) as change:
            await set_a_limit(change, organization_id)
            raise ValueError("thought better of it")
    assert await revision_of(store) == before
    async with audited_change(store, ACTOR) as change:
        await set_a_limit(change, organization_id)
    assert await revision_of(store) > before


async def test_a_database_that_was_restored_never_comes_to_a_number_seen_before(store: Store) -> None:
    organization_id = (await create_organization(store, "a")).organization_id
    seen = set()
    for _ in range(5):
        async with store.transaction() as session:
            await session.execute(update(Revision).values(number=0))
        async with audited_change(store, ACTOR) as change:
            await set_a_limit(change, organization_id)
        seen.add(await revision_of(store))
    assert len(seen) == 5


async def test_a_number_that_was_lost_is_made_again(store: Store) -> None:
    organization_id = (await create_organization(store, "a")).organization_id
    before = await revision_of(store)
    async with store.transaction() as session:
        await session.execute(delete(Revision))
    assert await revision_of(store) == 0
    async with audited_change(store, ACTOR) as change:
        await set_a_limit(change, organization_id)
    assert await revision_of(store) not in (0, before)


async def test_the_end_of_an_organisation_is_told(store: Store) -> None:
    await ensure_default_organization(store)
    gone = (await create_organization(store, "a")).organization_id
    before = await revision_of(store)
    await delete_organization(store, partial(audited_change, store, ACTOR), gone, erase_usage=True)
    assert await revision_of(store) > before
