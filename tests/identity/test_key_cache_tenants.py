"""What an act in one organisation does to the keys of the others, at two gateways on one database."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import pytest
from sqlalchemy import delete, select, update

from kvarn.config.platform import AuthConfig
from kvarn.identity import key_changes
from kvarn.identity.key_cache import KeyCache
from kvarn.store.engine import Store
from kvarn.store.models import ChangeNumber, Revision
from kvarn.store.repositories.retention.organization_deletion import delete_organization
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.store.repositories.tenants.organizations import create_organization, ensure_default_organization
from kvarn.store.repositories.tenants.rate_limits import set_limit
from kvarn.store.repositories.tenants.revisions import EVERYBODY
from kvarn.wire.openai.errors import ApiError
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
    monkeypatch.setattr(key_changes, "AWAY_S", 30.0)


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
async def test_an_act_in_one_organisation_makes_no_other_organisations_keys_be_read(store: Store, tenants) -> None:
    a, b = tenants
    here, there = Gate(store), Gate(store)
    for gate in (here, there):
        assert await gate.holding(a) == (3, 3) and await gate.holding(b) == (5, 5)
    for round_ in range(1, 11):
        await a.limit(round_)
        here.key_cache.renew([a.id])
        there.now += 1
        assert await here.holding(b) == (5, 0), "the change was of others, and made here"
        assert await there.holding(b) == (5, 1)
    for gate in (here, there):
        assert await gate.holding(a) == (3, 3), "read again when they are used, once"
        assert await gate.holding(a) == (3, 0)


async def test_what_is_revoked_ends_at_every_gateway_whoever_else_acts(store: Store, tenants) -> None:
    a, b = tenants
    here, there = Gate(store), Gate(store)
    for gate in (here, there):
        await gate.holding(a), await gate.holding(b)
    await a.limit(1)
    await b.revoke(next(iter(b.values)))
    await a.limit(2)
    here.key_cache.renew([b.id])
    there.now += 0.26
    assert (await here.holding(b))[0] == 4, "at once, the clock having stood still"
    assert (await there.holding(b))[0] == 4
    assert (await here.holding(a))[0] == (await there.holding(a))[0] == 3


async def test_what_concerns_all_is_read_again_by_all(store: Store, tenants) -> None:
    a, b = tenants
    gate = Gate(store)
    await gate.holding(a), await gate.holding(b)
    async with audited_change(store, ACTOR) as change:
        change.touched.add(EVERYBODY)
    gate.now += 1
    assert await gate.holding(a) == (3, 1 + 3) and await gate.holding(b) == (5, 5)


async def test_an_act_of_which_nobody_knows_whether_it_holds_stops_its_own_keys_alone(store: Store, tenants) -> None:
    a, b = tenants
    gate = Gate(store)
    await gate.holding(a), await gate.holding(b)
    gate.watched.away = True
    gate.key_cache.renew([a.id])
    for _ in range(3):
        assert (await gate.holding(b))[0] == 5
        with pytest.raises(ApiError) as refusal:
            await gate.holding(a)
        assert refusal.value.status == 503
        gate.now += 2
    gate.watched.away = False
    gate.now += 2
    await gate.holding(b)
    await gate.key_cache._changes.settle()
    assert (await gate.holding(a))[0] == 3, "it did not hold"


async def test_in_an_outage_keys_withdrawn_before_it_are_not_believed_and_the_others_are(store: Store, tenants) -> None:
    a, b = tenants
    gate = Gate(store)
    await gate.holding(a), await gate.holding(b)
    await a.revoke(next(iter(a.values)))
    gate.now += 1
    await gate.holding(b)  # asks, and so hears of it
    gate.watched.away = True
    gate.now += 1
    assert (await gate.holding(b))[0] == 5
    with pytest.raises(ApiError):
        await gate.holding(a)


async def test_the_keys_of_an_organisation_that_was_erased_end_however_late_a_gateway_looks(
    store: Store, tenants
) -> None:
    a, b = tenants
    await ensure_default_organization(store)
    here, there = Gate(store), Gate(store)
    for gate in (here, there):
        await gate.holding(a), await gate.holding(b)
    touched: set[str] = set()

    async def erase() -> None:
        await delete_organization(store, partial(audited_change, store, ACTOR), a.id, erase_usage=True)
        touched.add(a.id)

    await erase()
    here.key_cache.renew(touched)
    there.now += 3600
    for gate in (here, there):
        assert (await gate.holding(a))[0] == 0
        assert await gate.holding(b) == (5, 0), "asked once, for the others"


async def test_a_gateway_that_starts_knows_what_holds_and_hears_of_what_comes(store: Store, tenants) -> None:
    a, b = tenants
    for round_ in range(1, 4):
        await a.limit(round_)
    await b.revoke(next(iter(b.values)))
    gate = Gate(store)
    assert (await gate.holding(a))[0] == 3 and (await gate.holding(b))[0] == 4
    assert await gate.holding(a) == (3, 0)
    await a.revoke(next(iter(a.values)))
    gate.now += 1
    assert (await gate.holding(a))[0] == 2 and await gate.holding(b) == (4, 0)


async def test_a_database_that_was_taken_back_is_read_anew(store: Store, tenants) -> None:
    a, b = tenants
    for round_ in range(1, 4):
        await a.limit(round_)
    gate = Gate(store)
    await gate.holding(a), await gate.holding(b)
    async with store.transaction() as session:
        await session.execute(update(Revision).values(number=1))
    gate.now += 1
    assert await gate.holding(a) == (3, 1 + 3) and await gate.holding(b) == (5, 5)
    await b.revoke(next(iter(b.values)))
    gate.now += 1
    assert (await gate.holding(b))[0] == 4


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("later", range(1, 11))
async def test_a_revocation_after_acts_were_lost_is_missed_by_nobody_however_many_came_later(
    store: Store, tenants, later: int
) -> None:
    a, b = tenants
    await a.limit(1)
    async with store.reading() as session:
        replicated = [(row.holder, row.number) for row in await session.scalars(select(Revision))]
        numbers = list(await session.scalars(select(ChangeNumber.number)))
    for concurrency in (2, 3):
        await a.limit(concurrency)
    gate = Gate(store)
    await gate.holding(a), await gate.holding(b)
    async with store.transaction() as session:
        await session.execute(delete(Revision))
        await session.execute(delete(ChangeNumber))
        session.add_all([Revision(holder=holder, number=number) for holder, number in replicated])
        session.add_all([ChangeNumber(number=number) for number in numbers])
    await b.revoke(next(iter(b.values)))  # by another gateway, before this one looks
    for concurrency in range(1, later):
        await a.limit(concurrency)
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
        gate.key_cache.renew([b.id])
        assert (await gate.holding(b))[0] == 4 - list(b.values).index(key_id)
    await asking
    assert (await gate.holding(a))[0] == 3
