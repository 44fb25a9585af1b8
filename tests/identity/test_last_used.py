"""When keys were last used: gathered, and not lost where it cannot be written."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import event, select

from kvarn.identity import last_used as last_used_module
from kvarn.identity.last_used import LastUsed
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import ApiKey
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, mark_used
from new_tenants import create_organization


class Failing:
    """A store that fails as a test says."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.now = store.now
        self.error: BaseException | None = None

    @asynccontextmanager
    async def transaction(self) -> Any:
        if self.error is not None:
            raise self.error
        async with self._store.transaction() as session:
            yield session


async def add_keys(store: Store, count: int = 1) -> list[str]:
    tenant = await create_organization(store, "a")
    async with audited_change(store, Actor("test")) as change:
        asked = KeyRequest(name="k")
        made = [(await add_key(change, tenant.organization_id, tenant.project_id, asked))[0] for _ in range(count)]
    return [key.id for key in made]


async def last_used(store: Store) -> dict[str, int | None]:
    async with store.reading() as session:
        return dict((await session.execute(select(ApiKey.id, ApiKey.last_used_at))).all())


@pytest.mark.parametrize(
    "error",
    [StoreAwayError("the connection is lost"), ValueError("a fault nobody foresaw"), asyncio.CancelledError("stopped")],
)
async def test_what_could_not_be_written_is_written_later(store: Store, error: BaseException) -> None:
    (key_id,) = await add_keys(store)
    failing = Failing(store)
    used = LastUsed(failing)  # type: ignore[arg-type]
    used.mark(key_id)
    failing.error = error
    with suppress(asyncio.CancelledError):  # as `stop` ends the task that writes
        await used.write()
    failing.error = None
    await used.write()
    last = (await last_used(store))[key_id]
    assert last is not None and abs(last - store.now()) < 5


async def test_a_key_was_never_used_earlier_than_was_known_already(store: Store) -> None:
    early, late = await add_keys(store, 2)
    for marks in ({early: 100, late: 100}, {early: 50, late: 200}):
        async with store.transaction() as session:
            await mark_used(session, marks)
    assert await last_used(store) == {early: 100, late: 200}


async def test_many_keys_are_written_some_at_a_time_each_some_by_one_statement(store: Store) -> None:
    ids = await add_keys(store, 12)
    statements, transactions = [], []
    event.listen(store.engine.sync_engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    event.listen(store.engine.sync_engine, "commit", lambda _: transactions.append(1))
    used = LastUsed(store)
    for key_id in ids:
        used.mark(key_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(last_used_module, "_KEYS_AT_ONCE", 5)
        await used.write()
    assert None not in (await last_used(store)).values()
    assert len([statement for statement in statements if statement.startswith("UPDATE")]) == 3
    assert len(transactions) == 3
