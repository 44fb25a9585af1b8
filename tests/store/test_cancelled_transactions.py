"""A task cancelled anywhere in a transaction leaves no trace: not in the database, its connections or the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from sqlalchemy import event, text

from kvarn.store.engine import Store

STEPS = 60
"""Turns of the event loop after which tasks are cancelled."""


async def test_a_transaction_cancelled_anywhere_leaves_its_connection_clean(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    in_transaction: list[bool] = []

    def look(connection: Any, *_: object) -> None:
        driver = connection.driver_connection
        in_transaction.append(driver.in_transaction if store.is_sqlite else driver.is_in_transaction())

    async with store.transaction() as session:
        await session.execute(text("CREATE TABLE pairs (number INTEGER)"))
    event.listen(store.engine.sync_engine, "checkout", look)
    cancelled = 0
    for step in range(STEPS):
        tasks = {asyncio.create_task(_write_pair(store, step)), asyncio.create_task(_count(store))}
        for _ in range(step):
            await asyncio.sleep(0.0002)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        cancelled += sum(task.cancelled() for task in tasks)
        async with asyncio.timeout(15):  # nobody holds the lock of writers
            await _write_pair(store, STEPS)
    assert 0 < cancelled < 2 * STEPS, "some in time, some too late"
    counts = await _count(store)
    assert counts.pop(STEPS) == 2 * STEPS and set(counts.values()) <= {2}, "half a transaction"
    assert in_transaction and not any(in_transaction)
    # asyncio may log what asyncpg does when a connection that is being made is given up
    assert not [record.getMessage() for record in caplog.records if record.name.startswith(("sqlalchemy", "kvarn"))]


async def _write_pair(store: Store, number: int) -> None:
    async with store.transaction() as session:
        for _ in range(2):
            await session.execute(text("INSERT INTO pairs VALUES (:number)"), {"number": number})


async def _count(store: Store) -> dict[int, int]:
    async with store.reading() as session:
        rows = await session.execute(text("SELECT number, COUNT(*) FROM pairs GROUP BY number"))
        return dict(rows.all())
