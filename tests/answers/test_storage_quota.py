"""What a gateway knows of the quota that organisations have left: asked for seldom, shared, and never forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kvarn.answers.record import RequestRecord
from kvarn.answers.storage_quota import StorageQuota
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.owner import ANYBODY, Owner
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_bytes
from kvarn.wire.openai.errors import ApiError
from new_tenants import create_organization

MAX_BYTES = 100 * ROW_BYTES


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Account:
    """Stands for the database: what it says, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stored: int = 0) -> None:
        self.stored: int | Exception = stored
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        monkeypatch.setattr("kvarn.answers.storage_quota.read_stored_bytes", self.read)

    async def read(self, _: Store, __: str) -> int:
        self.asked += 1
        await self.answers.wait()
        if isinstance(self.stored, Exception):
            raise self.stored
        return self.stored


def request(organization_id: str, size: int = 0) -> RequestRecord:
    principal = replace(ANYBODY, owner=Owner(organization_id, "proj-1"))
    return RequestRecord("req-1", principal=principal, body_bytes=size)


async def admit(quota: StorageQuota, organization_id: str = "org-1", size: int = 0) -> RequestRecord:
    record = request(organization_id, size)
    await quota.check(record, "store", "send less")
    return record


async def test_room_is_asked_for_once_a_second_and_its_end_is_seen_then(store: Store) -> None:
    me = (await create_organization(store, "red")).organization_id
    clock = Clock()
    quota = StorageQuota(store, MAX_BYTES, clock)
    await asyncio.gather(*[admit(quota, me) for _ in range(5)])
    async with store.transaction() as session:
        await count_bytes(session, me, MAX_BYTES)
    await admit(quota, me)
    clock.now += 1.1
    with pytest.raises(ApiError, match=rf"of the {MAX_BYTES} bytes"):
        await admit(quota, me)
    async with store.transaction() as session:
        await count_bytes(session, me, -MAX_BYTES)
    await admit(quota, me)  # at once: that there is none is not remembered


async def test_nobody_is_refused_by_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    account = Account(monkeypatch)
    account.stored = StoreAwayError("away")
    quota = StorageQuota(store, MAX_BYTES, Clock())
    await asyncio.gather(*[admit(quota, size=MAX_BYTES) for _ in range(5)])
    assert account.asked == 1, "one question a second, not one each"


async def test_a_full_organisation_stays_refused_while_its_question_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr("kvarn.answers.storage_quota._WAIT_S", 0.01)
    account, clock = Account(monkeypatch, stored=MAX_BYTES), Clock()
    quota = StorageQuota(store, MAX_BYTES, clock)
    with pytest.raises(ApiError):
        await admit(quota)
    account.answers.clear()
    for _ in range(3):
        clock.now += 10
        with pytest.raises(ApiError):
            await admit(quota)


async def test_those_who_wait_for_an_answer_wait_together(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    account = Account(monkeypatch, stored=MAX_BYTES)
    account.answers.clear()
    quota = StorageQuota(store, MAX_BYTES, Clock())
    waiting = [asyncio.create_task(admit(quota)) for _ in range(30)]
    await asyncio.sleep(0)
    account.answers.set()
    refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in refused} == {ApiError} and account.asked == 1


async def test_what_was_let_in_counts_until_the_database_knows_it(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    account, clock, half = Account(monkeypatch), Clock(), MAX_BYTES // 2 - ROW_BYTES
    quota = StorageQuota(store, MAX_BYTES, clock)
    first, second = await admit(quota, size=half), await admit(quota, size=half)
    for _ in range(3):
        with pytest.raises(ApiError, match="this would take"):
            await admit(quota)
        clock.now += 1.1  # the database does not know of them, however often it is asked
    account.stored = MAX_BYTES // 2
    await first.close()
    with pytest.raises(ApiError):
        await admit(quota)
    account.stored = 0  # deleted again
    await admit(quota, size=half)
    await second.close()


async def test_a_request_that_would_not_fit_is_refused_though_there_is_some_room(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    Account(monkeypatch, stored=MAX_BYTES - 3 * ROW_BYTES)
    quota = StorageQuota(store, MAX_BYTES, Clock())
    with pytest.raises(ApiError, match="this would take"):
        await admit(quota, size=2 * ROW_BYTES + 1)
    await admit(quota, size=2 * ROW_BYTES)


async def test_writers_that_take_all_connections_hide_nothing(store: Store) -> None:
    me = (await create_organization(store, "red")).organization_id
    async with store.transaction() as session:
        await count_bytes(session, me, MAX_BYTES)
    crowded = Store(store.url, pool_size=1, timeout_s=5)
    quota = StorageQuota(crowded, MAX_BYTES)
    async with crowded.transaction():
        with pytest.raises(ApiError):
            await admit(quota, me)
    await crowded.close()


async def test_organisations_that_are_nearly_full_are_counted(store: Store) -> None:
    for name, size in (("red", MAX_BYTES * 4 // 5 + 1), ("blue", MAX_BYTES * 4 // 5), ("green", MAX_BYTES * 2)):
        me = (await create_organization(store, name)).organization_id
        for part in (size // 2, size - size // 2):
            async with store.transaction() as session:
                await count_bytes(session, me, part)
    told: list[int] = []
    await StorageQuota(store, MAX_BYTES).count_nearly_full(told.append)
    assert told == [2]
