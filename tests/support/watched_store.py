"""A store that a test takes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError


class WatchedStore:
    """A store whose reads are counted, and which may go away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.now = store.now
        self.reads = 0
        self.away = False
        self.hangs = False
        self.fails_to_commit = False

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncSession, None]:
        self.reads += 1
        if self.hangs:
            await asyncio.sleep(3600)
        if self.away:
            raise StoreAwayError("the connection is lost")
        async with self._store.reading() as session:
            yield session

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncSession, None]:
        if self.away:
            raise StoreAwayError("the connection is lost")
        async with self._store.transaction() as session:
            yield session
        if self.fails_to_commit:
            self.away = True
            raise StoreAwayError("the connection was lost during a write")
