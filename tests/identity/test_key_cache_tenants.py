"""What a change does to the keys that several gateways on one database remember."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import pytest
from sqlalchemy import delete

from kvarn.config.platform import AuthConfig
from kvarn.identity import key_cache
from kvarn.identity.key_cache import KeyCache
from kvarn.store.engine import Store
from kvarn.store.models import Change
from kvarn.store.repositories.changes import Position, read_news
from kvarn.store.repositories.organization_deletion import delete_organization
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.store.repositories.tenants.rate_limits import set_limit
from new_tenants import create_organization
from watched_store import WatchedStore

ACTOR = Actor("test")


@dataclass
class Tenant:
    """An organisation and its keys, by id."""

    store: Store
    id: str
    values: dict[str, str]

    @classmethod
    async def make(cls, store: Store, keys: int) -> Tenant:
        owner = (await create_organization(store, "t")).owner
        async with audited_change(store, ACTOR) as change:
            made = [
                await add_key(change, owner.organization_id, owner.project_id, KeyRequest(name="k"))
                for _ in range(keys)
            ]
        return cls(store, owner.organization_id, {key.id: value for key, value in made})

    async def limit(self, concurrency: int) -> None:
        async with audited_change(self.store, ACTOR) as change:
            await set_limit(change, self.id, self.id, "*", {"concurrency": concurrency})

    async def revoke(self, key_id: str) -> None:
        async with audited_change(self.store, ACTOR) as change:
            await revoke_key(change, self.id, key_id)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the database may take its time."""
    monkeypatch.setattr(key_cache, "AWAY_S", 30.0)


class Gate:
    """A gateway's key_cache, whose clock a test moves, on a store whose reads are counted."""

    def __init__(self, store: Store) -> None:
        self.watched, self.now = WatchedStore(store), 1000.0
        self.key_cache = KeyCache(self.watched, AuthConfig(refresh_s=0.25), lambda: self.now)  # type: ignore[arg-type]

    async def holding(self, tenant: Tenant) -> tuple[int, int]:
        """How many keys of a tenant are good here, and how many reads it took to know."""
        before = self.watched.reads
        found = [await self.key_cache.bearer_of(value) for value in tenant.values.values()]
        return sum(principal is not None for principal in found), self.watched.reads - before


@pytest.fixture
async def tenants(store: Store) -> tuple[Tenant, Tenant]:
    return await Tenant.make(store, 3), await Tenant.make(store, 5)


@pytest.mark.usefixtures("_patient")
async def test_a_change_makes_every_gateway_read_the_keys_of_its_organisation_alone(store: Store, tenants) -> None:
    a, b = tenants
    await a.limit(9)
    here, there = Gate(store), Gate(store)
    for gate in (here, there):
        assert await gate.holding(a) == (3, 3) and await gate.holding(b) == (5, 5)
    for round_ in range(1, 4):
        await a.limit(round_)
        here.key_cache.renew({a.id})
        there.now += 1
        assert await here.holding(b) == (5, 0)
        assert await there.holding(b) == (5, 1)
        assert await here.holding(a) == await there.holding(a) == (3, 3)
        assert await here.holding(b) == await there.holding(b) == (5, 0)


async def test_what_is_revoked_ends_at_every_gateway_whoever_else_acts(store: Store, tenants) -> None:
    a, b = tenants
    here, there = Gate(store), Gate(store)
    for gate in (here, there):
        await gate.holding(a), await gate.holding(b)
    await a.limit(1)
    await b.revoke(next(iter(b.values)))
    await a.limit(2)
    here.key_cache.renew()
    there.now += 0.26
    assert (await here.holding(b))[0] == 4, "at once, the clock having stood still"
    assert (await there.holding(b))[0] == 4
    assert (await here.holding(a))[0] == (await there.holding(a))[0] == 3


async def test_the_keys_of_an_organisation_that_was_erased_end_however_late_a_gateway_looks(
    store: Store, tenants
) -> None:
    a, b = tenants
    await ensure_default_organization(store)
    here, there = Gate(store), Gate(store)
    for gate in (here, there):
        await gate.holding(a), await gate.holding(b)
    await delete_organization(store, partial(audited_change, store, ACTOR), a.id, erase_usage=True)
    here.key_cache.renew()
    there.now += 3600
    for gate in (here, there):
        assert (await gate.holding(a))[0] == 0 and (await gate.holding(b))[0] == 5


async def restore(store: Store, backup: Position) -> None:
    """Undo what the feed holds after a backup."""
    async with store.transaction() as session:
        await session.execute(delete(Change).where(Change.number > backup.number))


async def position(store: Store) -> Position:
    async with store.reading() as session:
        return (await read_news(session, None)).position


async def test_a_database_that_was_restored_is_read_anew(store: Store, tenants) -> None:
    a, b = tenants
    await a.limit(1)
    backup = await position(store)
    await a.limit(2)
    gate = Gate(store)
    await gate.holding(a), await gate.holding(b)
    await restore(store, backup)
    gate.now += 1
    assert await gate.holding(a) == (3, 1 + 3) and await gate.holding(b) == (5, 5)
    await b.revoke(next(iter(b.values)))
    gate.now += 1
    assert (await gate.holding(b))[0] == 4


@pytest.mark.usefixtures("_patient")
async def test_acts_in_the_middle_of_many_reads_are_missed_by_none(store: Store, tenants) -> None:
    a, b = tenants
    gate = Gate(store)
    gate.now = asyncio.get_running_loop().time()

    async def ask() -> None:
        for _ in range(30):
            gate.now = asyncio.get_running_loop().time()
            await asyncio.gather(gate.holding(a), gate.holding(b))

    asking = asyncio.create_task(ask())
    for key_id in list(b.values)[:4]:
        await a.limit(1)
        await b.revoke(key_id)
        gate.key_cache.renew()
        assert (await gate.holding(b))[0] == 4 - list(b.values).index(key_id)
    await asking
    assert (await gate.holding(a))[0] == 3
