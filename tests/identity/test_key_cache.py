"""The cache of principals: no query while nothing changes, no change unnoticed, and a database that may go away."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select, update

from kvarn.config.platform import AuthConfig
from kvarn.identity.key_cache import KeyCache
from kvarn.store.engine import Store
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.keys import new_key
from kvarn.store.models import ApiKey
from kvarn.store.owner import Role
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.store.repositories.tenants.projects import add_project, archive_project
from kvarn.store.repositories.tenants.rate_limits import set_limit
from kvarn.store.repositories.tenants.users import add_service_account, add_user
from kvarn.wire.openai.errors import ApiError
from new_tenants import create_organization
from watched_store import WatchedStore

ACTOR = Actor("test")


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Setup:
    """A tenant with a key, and a key_cache over a store that is watched."""

    def __init__(self, store: Store, **config: float) -> None:
        self.store, self.watched, self.clock = store, WatchedStore(store), Clock()
        self.key_cache = KeyCache(self.watched, AuthConfig(**config), self.clock)  # type: ignore[arg-type]
        self.key_id = self.value = self.organization_id = ""

    async def furnish(self) -> Setup:
        tenant = await create_organization(self.store, "a")
        self.organization_id = tenant.organization_id
        async with audited_change(self.store, ACTOR) as change:
            key, self.value = await add_key(change, tenant.organization_id, tenant.project_id, KeyRequest(name="k"))
        self.key_id = key.id
        return self

    async def revoke(self) -> None:
        async with audited_change(self.store, ACTOR) as change:
            await revoke_key(change, self.organization_id, self.key_id)

    async def holds(self) -> bool:
        return await self.key_cache.bearer_of(self.value) is not None

    async def settle(self) -> None:
        """Let what runs beside the requests end."""
        await self.key_cache.settle()


async def test_a_known_key_costs_no_query_until_its_answer_is_half_as_old_as_it_may_be(store: Store) -> None:
    setup = await Setup(store, refresh_s=1.0).furnish()
    assert [await setup.holds() for _ in range(5)] == [True] * 5
    assert setup.watched.reads == 1
    setup.clock.now += 0.6
    assert await setup.holds()
    await setup.settle()
    assert setup.watched.reads == 2, "asked again beside the request"
    assert await setup.holds() and setup.watched.reads == 2


async def test_those_who_ask_for_a_key_at_once_read_it_once(store: Store) -> None:
    setup = await Setup(store).furnish()
    assert all(await asyncio.gather(*[setup.holds() for _ in range(50)]))
    assert setup.watched.reads == 1


async def test_a_change_made_elsewhere_is_seen_once_the_answer_may_not_be_older(store: Store) -> None:
    setup = await Setup(store, refresh_s=0.25).furnish()
    assert await setup.holds()
    await setup.revoke()
    setup.clock.now += 0.12
    assert await setup.holds(), "younger than half of refresh_s: nothing is asked"
    setup.clock.now += 0.14
    assert not await setup.holds()


async def test_a_change_made_here_holds_at_once(store: Store) -> None:
    setup = await Setup(store, refresh_s=60).furnish()
    assert await setup.holds()
    await setup.revoke()
    assert await setup.holds()
    setup.key_cache.renew()
    assert not await setup.holds()


async def test_a_key_that_was_unknown_is_asked_for_again(store: Store) -> None:
    setup = await Setup(store, refresh_s=60).furnish()
    made = await _lookup_of(store, setup.key_id)
    await _set_lookup(store, setup.key_id, "not-here-yet")
    assert not await setup.holds() and not await setup.holds()
    assert setup.watched.reads == 1, "whoever tries keys costs a query now and then"
    await _set_lookup(store, setup.key_id, made)
    setup.clock.now += 5
    assert await setup.holds()


async def _lookup_of(store: Store, key_id: str) -> str:
    async with store.reading() as session:
        return (await session.scalars(select(ApiKey.lookup).where(ApiKey.id == key_id))).one()


async def _set_lookup(store: Store, key_id: str, lookup: str) -> None:
    async with store.transaction() as session:
        await session.execute(update(ApiKey).where(ApiKey.id == key_id).values(lookup=lookup))


async def test_an_act_after_which_all_keys_grant_what_they_did_makes_none_be_read_again(store: Store) -> None:
    setup = await Setup(store, refresh_s=1.0).furnish()
    assert await setup.holds()
    tenant = await create_organization(store, "b")
    async with audited_change(store, ACTOR) as change:
        project = await add_project(change, tenant.organization_id, "p")
        other = await add_project(change, tenant.organization_id, "q")
        await add_user(change, tenant.organization_id, "ada@example.org", "Ada", Role.ADMIN)
        await add_service_account(change, tenant.organization_id, tenant.project_id, "s", "member")
        await add_key(change, tenant.organization_id, tenant.project_id, KeyRequest(name="k"))
    async with audited_change(store, ACTOR) as change:  # a feed without any entry names no organisation
        await archive_project(change, tenant.organization_id, other.id)
    setup.clock.now += 2
    assert await setup.holds()
    reads = setup.watched.reads
    setup.clock.now += 2
    assert await setup.holds()
    assert setup.watched.reads == reads + 1, "the feed alone is read"
    async with audited_change(store, ACTOR) as change:
        await archive_project(change, tenant.organization_id, project.id)
    setup.clock.now += 2
    assert await setup.holds()
    assert setup.watched.reads == reads + 2, "the feed, which names another organisation"


async def test_an_unknown_key_and_a_revoked_one_are_read_alike(store: Store) -> None:
    setup = await Setup(store, refresh_s=60).furnish()
    await setup.revoke()
    for value in (new_key().value, setup.value, setup.value[:-1] + ("a" if setup.value[-1] != "a" else "b")):
        before = setup.watched.reads
        fresh = KeyCache(setup.watched, AuthConfig(refresh_s=60), setup.clock)  # type: ignore[arg-type]
        assert [await fresh.bearer_of(value) for _ in range(3)] == [None] * 3
        assert setup.watched.reads == before + 1


async def test_the_beginning_of_a_key_is_not_enough(store: Store) -> None:
    setup = await Setup(store).furnish()
    forged = setup.value[:15] + new_key().value[15:]
    assert await setup.key_cache.bearer_of(forged) is None
    assert await setup.holds()


async def test_trying_many_keys_pushes_no_known_one_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvarn.identity.key_cache._MAX_UNKNOWN", 3)
    setup = await Setup(store, refresh_s=60).furnish()
    assert await setup.holds()
    for _ in range(10):
        await setup.key_cache.bearer_of(new_key().value)
    reads = setup.watched.reads
    assert await setup.holds() and setup.watched.reads == reads


async def test_known_keys_go_on_while_the_database_is_away_and_unknown_ones_hear_so(store: Store) -> None:
    setup = await Setup(store, refresh_s=0.25, stale_s=100).furnish()
    assert await setup.holds()
    setup.watched.away = True
    setup.clock.now += 50
    assert await setup.holds()
    with pytest.raises(ApiError) as refusal:
        await setup.key_cache.bearer_of(new_key().value)
    assert refusal.value.status == 503 and "retry-after" in refusal.value.headers
    setup.clock.now += 99
    assert await setup.holds(), "counted from when the database was missed"
    setup.clock.now += 2
    with pytest.raises(ApiError):
        await setup.holds()


async def test_a_key_withdrawn_here_is_not_believed_again_while_the_database_is_away(store: Store) -> None:
    setup = await Setup(store, stale_s=100).furnish()
    assert await setup.holds()
    await setup.revoke()
    setup.key_cache.renew()
    setup.watched.away = True
    for _ in range(3):
        with pytest.raises(ApiError) as refusal:
            await setup.holds()
        assert refusal.value.status == 503
        setup.clock.now += 2


async def test_a_key_not_read_since_a_change_elsewhere_is_not_believed_while_the_database_is_away(store: Store) -> None:
    setup = await Setup(store, refresh_s=0.25, stale_s=100).furnish()
    assert await setup.holds()
    tenant = await create_organization(store, "b")
    async with audited_change(store, ACTOR) as change:
        _, other = await add_key(change, tenant.organization_id, tenant.project_id, KeyRequest(name="k"))
    await setup.revoke()
    setup.clock.now += 1
    assert await setup.key_cache.bearer_of(other) is not None, "tells the key cache of the change"
    setup.watched.away = True
    setup.clock.now += 10
    assert await setup.key_cache.bearer_of(other) is not None
    with pytest.raises(ApiError):
        await setup.holds()


async def test_a_database_that_is_away_is_asked_once_a_second(store: Store) -> None:
    setup = await Setup(store).furnish()
    assert await setup.holds()
    setup.watched.away = True
    setup.clock.now += 10
    assert await setup.holds()
    reads = setup.watched.reads
    for _ in range(20):
        assert await setup.holds()
    assert setup.watched.reads == reads


async def test_a_database_that_hangs_holds_a_known_key_up_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvarn.identity.key_cache.AWAY_S", 0.05)
    setup = await Setup(store, stale_s=100).furnish()
    await ensure_default_organization(store)
    assert await setup.holds()
    salt = (await setup.key_cache.anybody()).cache_salt
    setup.watched.hangs = True
    for _ in range(5):
        setup.clock.now += 10
        async with asyncio.timeout(60):
            assert await setup.holds()
            assert (await setup.key_cache.anybody()).cache_salt == salt != ""
    await setup.key_cache.close()


async def test_when_the_database_is_back_what_was_changed_meanwhile_holds(store: Store) -> None:
    setup = await Setup(store).furnish()
    assert await setup.holds()
    setup.watched.away = True
    setup.clock.now += 10
    assert await setup.holds()
    await setup.revoke()
    setup.watched.away = False
    setup.clock.now += 2
    await setup.holds()  # asks beside itself: a database that was away is not waited for
    await setup.settle()
    assert not await setup.holds()


async def test_an_expired_key_ends_without_a_query(store: Store) -> None:
    setup = await Setup(store, refresh_s=60).furnish()
    tenant = await create_organization(store, "b")
    asked = KeyRequest(name="k", lifetime_s=100)
    async with audited_change(store, ACTOR) as change:
        _, value = await add_key(change, tenant.organization_id, tenant.project_id, asked)
    assert await setup.key_cache.bearer_of(value) is not None
    reads = setup.watched.reads
    setup.watched.now = lambda: store.now() + 101
    assert await setup.key_cache.bearer_of(value) is None
    assert setup.watched.reads == reads


async def test_anybody_has_the_default_organisations_salt_and_limits(store: Store) -> None:
    setup = Setup(store, refresh_s=60)
    assert (await setup.key_cache.anybody()).cache_salt == ""
    assert await ensure_default_organization(store)
    assert not await ensure_default_organization(store)
    anybody = await setup.key_cache.anybody()
    assert anybody.organization_id == DEFAULT_ORGANIZATION and anybody.cache_salt and anybody.limits == ()
    async with audited_change(store, ACTOR) as change:
        await set_limit(change, DEFAULT_ORGANIZATION, DEFAULT_ORGANIZATION, "*", {"tokens_per_minute": 9})
    setup.clock.now += 61
    assert [rule.tokens_per_minute for rule in (await setup.key_cache.anybody()).limits] == [9]
