"""The feed that tells other processes which organisations changed."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import delete, func, select

from kvarn.store.engine import Store
from kvarn.store.models import Change
from kvarn.store.repositories.changes import News, Position, delete_old_changes, deleted_organizations, read_news
from kvarn.store.repositories.organization_deletion import delete_organization
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange, audited_change
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.store.repositories.tenants.rate_limits import set_limit
from new_tenants import create_organization

ACTOR = Actor("test")


async def news(store: Store, since: Position | None = None) -> News:
    async with store.reading() as session:
        return await read_news(session, since)


async def set_a_limit(change: AuditedChange, organization_id: str) -> None:
    await set_limit(change, organization_id, organization_id, "*", {"concurrency": 1})


async def change_limit(store: Store, organization_id: str) -> None:
    async with audited_change(store, ACTOR) as change:
        await set_a_limit(change, organization_id)


async def test_a_committed_change_names_its_organisation_and_a_failed_one_does_not(store: Store) -> None:
    a, b = [(await create_organization(store, name)).organization_id for name in "ab"]
    await change_limit(store, a)
    begin = (await news(store)).position
    with pytest.raises(ValueError, match="thought better"):
        async with audited_change(store, ACTOR) as change:
            await set_a_limit(change, a)
            raise ValueError("thought better of it")
    assert await news(store, begin) == News(begin, set())
    await change_limit(store, b)
    told = await news(store, begin)
    assert told.organizations == {b} and told.position.number > begin.number
    assert (await news(store, told.position)).organizations == set()


async def test_a_position_that_a_restored_database_does_not_have_tells_to_read_everything_again(store: Store) -> None:
    organization_id = (await create_organization(store, "a")).organization_id
    await change_limit(store, organization_id)
    await change_limit(store, organization_id)
    seen = (await news(store)).position
    async with store.transaction() as session:
        await session.execute(delete(Change).where(Change.number == seen.number))
    assert (await news(store, seen)).organizations is None
    await change_limit(store, organization_id)
    again = await news(store, seen)
    assert again.organizations is None and again.position != seen


async def test_any_change_since_an_empty_feed_tells_to_read_everything_again(store: Store) -> None:
    revoked, other = [(await create_organization(store, name)).organization_id for name in "ab"]
    async with store.transaction() as session:
        await session.execute(delete(Change))
    begin, now = (await news(store)).position, store.now()
    assert begin == Position() and await news(store, begin) == News(begin, set())
    await change_limit(store, revoked)
    await change_limit(store, other)
    store.now = lambda: now + 25 * 3600
    await delete_old_changes(store)
    assert (await news(store, begin)).organizations is None


async def test_more_changes_than_are_read_one_by_one_tell_to_read_everything_again(store: Store, monkeypatch) -> None:
    monkeypatch.setattr("kvarn.store.repositories.changes._MAX_READ", 3)
    organization_id = (await create_organization(store, "a")).organization_id
    await change_limit(store, organization_id)
    begin = (await news(store)).position
    for _ in range(2):
        await change_limit(store, organization_id)
    assert (await news(store, begin)).organizations == {organization_id}
    await change_limit(store, organization_id)
    assert (await news(store, begin)).organizations is None


async def test_old_changes_go_but_deletions_and_the_newest_stay(store: Store) -> None:
    await ensure_default_organization(store)
    gone, stays = [(await create_organization(store, name)).organization_id for name in "ab"]
    await delete_organization(store, partial(audited_change, store, ACTOR), gone, erase_usage=True)
    for _ in range(3):
        await change_limit(store, stays)
    newest, now = (await news(store)).position, store.now()
    store.now = lambda: now + 25 * 3600
    await delete_old_changes(store)
    async with store.reading() as session:
        assert await deleted_organizations(session) == [gone]
        assert await session.scalar(select(func.count()).select_from(Change)) == 2
    assert await news(store, newest) == News(newest, set())
