"""Reports may take long, and nobody else waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from sqlalchemy import text

from kvarn.store.engine import REPORT_CONNECTIONS, Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.usage import events as usage_events
from sample_usage import make_event

ENDLESS = text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")


@pytest.fixture
async def hasty(store: Store) -> AsyncGenerator[Store, None]:
    """A database whose reports may take 0.5 s, and all else 20."""
    made = Store(store.url, timeout_s=20, report_timeout_s=0.5)
    yield made
    await made.close()


async def report(store: Store) -> None:
    async with store.reporting() as session:
        await session.execute(ENDLESS)


async def test_a_report_that_takes_too_long_is_ended(hasty: Store) -> None:
    async with asyncio.timeout(60):  # in SQLite's thread it would go on for ever, and the next would wait for it
        for _ in range(REPORT_CONNECTIONS + 2):
            with pytest.raises(StoreAwayError, match=r"did not answer within 0\.5 s"):
                await report(hasty)


async def test_a_query_that_takes_too_long_is_ended(store: Store) -> None:
    hasty = Store(store.url, timeout_s=0.5)
    async with asyncio.timeout(60):
        with pytest.raises(StoreAwayError, match=r"did not answer within 0\.5 s"):
            async with hasty.reading() as session:
                await session.execute(ENDLESS)
        await hasty.close()


async def test_others_read_and_write_while_many_reports_wait(store: Store) -> None:
    patient = Store(store.url, timeout_s=60, report_timeout_s=3600)
    reports = [asyncio.create_task(report(patient)) for _ in range(40)]
    await asyncio.sleep(0.3)
    async with patient.reading() as session:
        await session.execute(text("SELECT 1"))
    assert await usage_events.record(patient, [make_event(1)]) == {"use_1"}
    assert not any(each.done() for each in reports), "they were at it all the time"
    for each in reports:
        each.cancel()
    await asyncio.wait(reports)
    await patient.close()


async def test_what_is_given_up_is_ended_at_once(store: Store) -> None:
    patient = Store(store.url, timeout_s=3600, report_timeout_s=3600)
    asked = asyncio.create_task(report(patient))
    await asyncio.sleep(0.3)
    asked.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await asked
        await patient.close()
