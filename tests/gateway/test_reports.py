"""Reports of one organisation come one after the other, and those of others between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import make_url

from kvarn.metering.usage_reports import Reports
from kvarn.store.engine import REPORT_CONNECTIONS, Store
from kvarn.store.ledger import UsageFilter, UsageSum
from kvarn.store.repositories.usage import sums as usage_sums


class Desk:
    """Reports that take until a test lets them end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports = Reports(Store(make_url("sqlite+aiosqlite:///never-opened.db")))
        self.running: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        monkeypatch.setattr(usage_sums, "sums", self._sums)

    async def _sums(self, store: Store, where: UsageFilter, **_: Any) -> list[UsageSum]:
        tenant = str(where.organization_id)
        self.running.append(tenant)
        self._ends[tenant] = asyncio.Event()
        await self._ends[tenant].wait()
        self.running.remove(tenant)
        return []

    async def ask(self, *tenants: str) -> list[asyncio.Task[Any]]:
        asked = [
            asyncio.create_task(
                self.reports.sums(tenant, UsageFilter(organization_id=tenant), start=0, end=1, width=0, group_by=())
            )
            for tenant in tenants
        ]
        await self._let_run()
        return asked

    async def end(self, tenant: str) -> None:
        self._ends[tenant].set()
        await self._let_run()

    async def _let_run(self) -> None:
        for _ in range(20):  # more than a report's steps
            await asyncio.sleep(0)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


async def test_whoever_asks_much_leaves_a_place_to_others(desk):
    asked = await desk.ask(*["red"] * 5)
    assert desk.running == ["red"]
    asked += await desk.ask("blue", "green")
    assert desk.running == ["red", "blue"] and REPORT_CONNECTIONS == 2
    await desk.end("red")
    assert desk.running == ["blue", "green"], "red has had its turn"
    await desk.end("blue")
    assert desk.running == ["green", "red"]
    await desk.end("green")
    for _ in range(4):
        await desk.end("red")
    assert all(task.done() for task in asked) and desk.running == []
    assert not desk.reports.running.holders()


async def test_who_leaves_while_waiting_holds_up_nobody(desk):
    first, second, third = await desk.ask("red", "red", "red")
    second.cancel()
    await desk.end("red")
    assert first.done() and desk.running == ["red"]
    await desk.end("red")
    await third
