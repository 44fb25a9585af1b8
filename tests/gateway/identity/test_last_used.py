"""When keys were last used: gathered, and not lost where it cannot be written."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import select

from kvarn.gateway.identity.last_used import LastUsed
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import ApiKey
from kvarn.store.repositories.acts import Actor, acting
from kvarn.store.repositories.keys import KeyRequest, add_key
from kvarn.store.repositories.tenants import create_organization


class Failing:
    """A store that fails as a test says."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.now = store.now
        self.error: Exception | None = None

    @asynccontextmanager
    async def transaction(self) -> Any:
        if self.error is not None:
            raise self.error
        async with self._store.transaction() as session:
            yield session


@pytest.mark.parametrize("error", [StoreAwayError("the cable is cut"), ValueError("a fault nobody foresaw")])
async def test_what_could_not_be_written_is_written_later(store: Store, error: Exception) -> None:
    tenant = await create_organization(store, "a")
    async with acting(store, Actor("test")) as act:
        key, _ = await add_key(act, tenant.organization_id, tenant.project_id, KeyRequest(name="k"))
    failing = Failing(store)
    used = LastUsed(failing)  # type: ignore[arg-type]
    used.mark(key.id)
    failing.error = error
    await used.write()
    failing.error = None
    await used.write()
    async with store.reading() as session:
        last = await session.scalar(select(ApiKey.last_used_at).where(ApiKey.id == key.id))
    assert last is not None and abs(last - store.now()) < 5
