"""Databases that answer and take no writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy import event

from kvarn.config.schema import KvarnConfig
from kvarn.store.engine import Store


@asynccontextmanager
async def opened(url: str, timeout_s: float = 5.0) -> AsyncGenerator[Store, None]:
    """The database of a URL, as a server opens it."""
    store = Store.open(KvarnConfig.model_validate({"store": {"url": url, "timeout_s": timeout_s}}))
    try:
        yield store
    finally:
        await store.close()


async def set_postgres_read_only(url: str, read_only: bool) -> None:
    """What all sessions of a PostgreSQL begin with from now on, those that are open too: as after its demotion."""
    session = await asyncpg.connect(url, server_settings={"default_transaction_read_only": "off"})
    try:
        await session.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if read_only else 'off'}")
        await session.execute("SELECT pg_reload_conf()")
    finally:
        await session.close()
    other = await asyncpg.connect(url)
    try:
        wanted = "on" if read_only else "off"
        while await other.fetchval("SHOW default_transaction_read_only") != wanted:  # noqa: ASYNC110  tells nobody
            await asyncio.sleep(0.01)
    finally:
        await other.close()


class SqliteSwitch:
    """Has SQLite refuse what a store's connections write, from their next transaction on.

    Args:
        store: The store.
        refuse: The pragma that makes SQLite refuse; `query_only=1`: the file is read-only, `max_page_count=1`: the disk
            is full.
        allow: The pragma that undoes it.
    """

    def __init__(self, store: Store, refuse: str = "query_only=1", allow: str = "query_only=0") -> None:
        self.is_on = False
        self._pragmas = {True: refuse, False: allow}
        event.listen(store.engine.sync_engine, "checkout", self._set)

    def _set(self, connection: Any, *_: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA {self._pragmas[self.is_on]}")
        cursor.close()
