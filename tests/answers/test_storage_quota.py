"""Requests that would store past the quota: refused by what they bring, at the cost of one query a second."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import update

from kvarn.answers.record import RequestRecord
from kvarn.answers.storage_quota import StorageQuota
from kvarn.clock.virtual import VirtualClock
from kvarn.store import quota as store_quota
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import Organization
from kvarn.store.owner import ANYBODY, Owner
from kvarn.store.repositories.stored_bytes import ROW_BYTES, storing, sum_stored_bytes
from kvarn.wire.openai.errors import ApiError
from new_tenants import create_organization

MAX_BYTES = 100 * ROW_BYTES


@pytest.fixture
def clock(store: Store) -> VirtualClock:
    clock = VirtualClock()
    store.quota = store_quota.StorageQuota(MAX_BYTES, clock.now)
    return clock


async def admit(quota: StorageQuota, organization_id: str, size: int = 0) -> None:
    principal = replace(ANYBODY, owner=Owner(organization_id, "proj-1"))
    await quota.check(RequestRecord("req-1", principal=principal, body_bytes=size), "store", "send less")


async def test_a_request_that_ends_with_nothing_stored_counts_no_longer(store, clock):
    me = (await create_organization(store, "red")).organization_id
    principal, quota = replace(ANYBODY, owner=Owner(me, "proj-1")), StorageQuota(store, MAX_BYTES)
    for stored in (False, False, True):
        record = RequestRecord("req-1", principal=principal, body_bytes=MAX_BYTES - 2 * ROW_BYTES)
        await quota.check(record, "store", "send less")
        record.stored = stored
        await record.close()
    with pytest.raises(ApiError, match="this would take"):
        await admit(quota, me, ROW_BYTES)


async def test_a_request_that_ends_after_the_next_sum_gives_nothing_back(store, clock):
    me = (await create_organization(store, "red")).organization_id
    principal, quota = replace(ANYBODY, owner=Owner(me, "proj-1")), StorageQuota(store, MAX_BYTES)
    half = MAX_BYTES // 2 - ROW_BYTES
    record = RequestRecord("req-1", principal=principal, body_bytes=half)
    await quota.check(record, "store", "send less")
    await sum_stored_bytes(store)
    clock.sleep(1.1)
    await admit(quota, me, half)
    await record.close()
    assert store.quota.stored(me) == half + ROW_BYTES


async def test_a_transaction_that_fails_gives_back_what_it_was_to_store(store, clock):
    me = (await create_organization(store, "red")).organization_id
    for _ in range(3):
        with pytest.raises(RuntimeError):
            async with storing(store, me, MAX_BYTES):
                raise RuntimeError("the disk")
    async with storing(store, me, MAX_BYTES):
        pass
    assert store.quota.stored(me) == MAX_BYTES


async def set_stored(store: Store, organization_id: str, size: int) -> None:
    async with store.transaction() as session:
        changed = update(Organization).where(Organization.id == organization_id).values(other_bytes=size)
        await session.execute(changed)


async def test_a_full_organisation_is_noticed_within_a_second(store, clock):
    me = (await create_organization(store, "red")).organization_id
    quota = StorageQuota(store, MAX_BYTES)
    await admit(quota, me)
    await set_stored(store, me, MAX_BYTES)
    await admit(quota, me)
    clock.sleep(1.1)
    with pytest.raises(ApiError, match=rf"of the {MAX_BYTES} bytes"):
        await admit(quota, me)
    assert await quota.is_full(me)


async def test_admitted_bytes_count_until_the_next_sum(store, clock):
    me = (await create_organization(store, "red")).organization_id
    quota, half = StorageQuota(store, MAX_BYTES), MAX_BYTES // 2 - ROW_BYTES
    await admit(quota, me, half)
    await admit(quota, me, half)
    clock.sleep(1.1)
    with pytest.raises(ApiError, match="this would take"):
        await admit(quota, me)
    await sum_stored_bytes(store)
    clock.sleep(1.1)
    await admit(quota, me, half)


async def test_bytes_admitted_while_a_sum_is_made_count_until_the_next_one(store, clock):
    me = (await create_organization(store, "red")).organization_id
    quota, half, reporting = StorageQuota(store, MAX_BYTES), MAX_BYTES // 2 - ROW_BYTES, store.reporting
    began = store.now()
    await admit(quota, me, half)

    def admit_meanwhile():
        """The sum has begun: what comes now is not in it."""
        store.now = lambda: began + 61
        store.quota.admit(me, half + ROW_BYTES, store.now())
        return reporting()

    store.now, store.reporting = lambda: began + 60, admit_meanwhile
    await sum_stored_bytes(store)
    store.reporting = reporting
    clock.sleep(1.1)
    await admit(quota, me, half)
    assert store.quota.stored(me) == MAX_BYTES, "the second and the third"
    store.now = lambda: began + 90
    await sum_stored_bytes(store)
    clock.sleep(1.1)
    await admit(quota, me, half)
    assert store.quota.stored(me) == MAX_BYTES // 2


async def test_moments_of_admissions_are_joined_so_that_they_stay_few(clock):
    quota = store_quota.StorageQuota(MAX_BYTES, clock.now)
    first = quota.admit("red", 5, 0.0)
    for second in range(5000):
        quota.admit("red", 2, 1.0 + second)
    quota.give_back("red", 5, first)  # it has been joined: it counts until the next sum
    assert quota.stored("red") == 10_005 and len(quota.balance("red").since) <= 1000
    quota.note("red", 7, summed_at=10**9)
    assert quota.stored("red") == 7


@pytest.mark.parametrize("how", ["away", "silent"])
async def test_the_last_answer_holds_while_the_database_does_not_answer(store, clock, monkeypatch, how):
    me = (await create_organization(store, "red")).organization_id
    quota = StorageQuota(store, MAX_BYTES)
    await set_stored(store, me, MAX_BYTES - 2 * ROW_BYTES)
    await admit(quota, me)

    async def fail(*_: object) -> None:
        if how == "away":
            raise StoreAwayError("away")
        await asyncio.Event().wait()

    monkeypatch.setattr("kvarn.answers.storage_quota.update_balance", fail)
    monkeypatch.setattr("kvarn.answers.storage_quota._WAIT_S", 0.01)
    clock.sleep(10)
    await admit(quota, me)
    with pytest.raises(ApiError):
        await admit(quota, me)


async def test_requests_at_once_ask_the_database_once(store, clock, monkeypatch):
    me = (await create_organization(store, "red")).organization_id
    quota, reporting, asked = StorageQuota(store, MAX_BYTES), store.reporting, []
    monkeypatch.setattr(store, "reporting", lambda: asked.append(1) or reporting())
    await asyncio.gather(*[admit(quota, me) for _ in range(30)])
    assert len(asked) == 1


async def test_writers_that_take_all_connections_hide_nothing(store):
    me = (await create_organization(store, "red")).organization_id
    await set_stored(store, me, MAX_BYTES)
    crowded = Store(store.url, pool_size=1, timeout_s=5, max_stored_bytes=MAX_BYTES)
    async with crowded.transaction():
        with pytest.raises(ApiError):
            await admit(StorageQuota(crowded, MAX_BYTES), me)
    await crowded.close()


async def test_organisations_that_are_nearly_full_are_counted(store):
    for name, size in (("red", MAX_BYTES * 4 // 5 + 1), ("blue", MAX_BYTES * 4 // 5), ("green", MAX_BYTES * 2)):
        await set_stored(store, (await create_organization(store, name)).organization_id, size)
    told: list[int] = []
    await StorageQuota(store, MAX_BYTES).count_nearly_full(told.append)
    assert told == [2]
