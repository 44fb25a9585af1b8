"""Those who write within an organisation's bound: one after another, few at once, and only where there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import event

from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError, StoreBusyError
from kvarn.store.health import StoreState
from kvarn.store.models import Conversation
from kvarn.store.repositories.conversations import conversations
from kvarn.store.repositories.queries import read_owned
from kvarn.store.repositories.stored_bytes import count_file_bytes, storing, storing_file
from new_tenants import create_organization

AMPLE = 1 << 40


async def write(store: Store, organization_id: str, size: int, most: int) -> None:
    store.quota.max_bytes = most
    async with storing_file(store, organization_id, size):
        pass


@asynccontextmanager
async def standing_still(store: Store, organization_id: str, size: int) -> AsyncGenerator[None, None]:
    """Another gateway, which has counted and does not commit until the block is over."""
    other = Store(store.url, timeout_s=30)
    async with other.transaction() as session:
        await count_file_bytes(session, organization_id, size, AMPLE)
        yield
    await other.close()


async def test_who_is_refused_has_written_nothing(store: Store) -> None:
    red = await create_organization(store, "red")
    written: list[str] = []

    def note(_: Any, __: Any, statement: str, *rest: Any) -> None:
        if statement.lstrip().upper().startswith(("INSERT", "UPDATE")):
            written.append(statement)

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    items = [{"id": "msg_1", "type": "message", "content": "x" * 100_000}]
    store.quota.max_bytes = 50_000
    with pytest.raises(StorageFullError):
        await conversations.create_conversation(store, red.owner, {}, items)
    assert written == []
    await conversations.create_conversation(store, red.owner, {}, [])
    assert written


async def test_one_who_stands_still_holds_up_neither_its_organisation_for_long_nor_others(store: Store) -> None:
    if store.is_sqlite:
        pytest.skip("SQLite has one writer at a time, whoever it is")
    red, blue = await create_organization(store, "red"), await create_organization(store, "blue")
    store.quota.max_bytes = AMPLE
    mine = await conversations.create_conversation(store, blue.owner, {}, [])
    small = Store(store.url, pool_size=3, timeout_s=5, max_stored_bytes=AMPLE)
    async with standing_still(store, red.organization_id, 60):
        reds = [asyncio.create_task(write(small, red.organization_id, 1, AMPLE)) for _ in range(12)]
        await asyncio.sleep(0.1)
        await read_owned(small, blue.owner, Conversation, mine.id)
        await conversations.create_conversation(small, blue.owner, {}, [])
        assert not all(each.done() for each in reds), "they were at it all the time"
        results = await asyncio.gather(*reds, return_exceptions=True)
    assert {type(result) for result in results} == {StoreBusyError}
    assert small.health.state is StoreState.UP
    await write(small, red.organization_id, 1, AMPLE)
    await small.close()


async def test_of_one_organisation_two_write_at_once_and_all_come(store: Store) -> None:
    store.quota.max_bytes = AMPLE
    inside, seen = 0, []

    async def take() -> None:
        nonlocal inside
        async with storing(store, "org-red", 0):
            inside += 1
            seen.append(inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*[take() for _ in range(20)])
    assert max(seen) <= 2 and len(seen) == 20
    patience, store.timeout_s = store.timeout_s, 0.05
    for _ in range(2):
        await store.writers.acquire("org-red")
    with pytest.raises(StoreBusyError):
        async with storing(store, "org-red", 0):
            pass
    store.writers.release("org-red")
    store.timeout_s = patience
    async with storing(store, "org-red", 0):
        pass
