"""What may still be spent: exact for one gateway, the same for all of them after a look at the database."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from kvarn.config.schema import KvarnConfig
from kvarn.metering.event import InFlight, Measured
from kvarn.metering.service import Metering
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.ids import DEFAULT_ORGANIZATION, DEFAULT_PROJECT
from kvarn.store.models import AuditEntry, Budget
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.store.repositories.usage import budgets
from kvarn.store.repositories.usage import events as usage_events
from metric_values import metric_value
from sample_usage import make_event

NOW = 1_790_000_001.0


async def gateway(store: Store, directory: Any) -> Metering:
    config = KvarnConfig.model_validate(
        {
            "data_dir": str(directory),
            "metering": {"budget_refresh_s": 0.01, "flush_interval_s": 0.01},
        }
    )
    made = Metering(config, store)
    made.open()
    await made.start()
    return made


def work(metering: Metering, number: int, tokens: int) -> None:
    """A request through a gateway's ledger."""
    request = InFlight(
        id=f"use_{number}",
        request_id="r",
        organization_id=DEFAULT_ORGANIZATION,
        project_id=DEFAULT_PROJECT,
        endpoint="/v1/chat/completions",
        model="tiny",
        started=NOW,
    )
    slot = metering.begin(request, 0.0)
    metering.finish(slot, request, Measured("finished", tokens, 0, 0, NOW, None))


async def test_gateways_agree_on_what_is_spent_and_one_of_them_gives_the_alert(
    store: Store, tmp_path: Any, wait_until: Any
) -> None:
    store.now = lambda: NOW
    await ensure_default_organization(store)
    async with store.transaction() as session:
        values = {"unit": "tokens", "period": "month", "hard_limit": 100, "soft_limit": 50, "created_at": 1}
        session.add(
            Budget(id="budget-1", organization_id=DEFAULT_ORGANIZATION, holder_id=DEFAULT_ORGANIZATION, **values)
        )
    first, second = await gateway(store, tmp_path / "1"), await gateway(store, tmp_path / "2")
    holders = (DEFAULT_ORGANIZATION, DEFAULT_PROJECT)
    try:
        for number in range(5):
            work(first if number % 2 else second, number, 20)

        def refused(metering: Metering) -> bool:
            (limit,) = metering.budgets.limits(holders, 1, 0, NOW)[1]
            assert limit.spending is not None
            return limit.spending.spent + limit.spending.unread >= limit.maximum

        def alerts() -> list[float]:
            return [metric_value(each.metrics.budget_alerts.labels("tokens")) for each in (first, second)]

        await wait_until(lambda: refused(first) and refused(second) and any(alerts()))
        await asyncio.sleep(0.1)
        assert sorted(alerts()) == [0, 1]
        async with store.reading() as session:
            entries = await session.scalars(select(AuditEntry).where(AuditEntry.type == "budget.alerted"))
            (entry,) = entries.all()
        assert (entry.object_id, entry.detail["period"]) == ("budget-1", "2026-09")
    finally:
        await first.stop()
        await second.stop()


async def test_money_of_one_currency_is_not_counted_as_that_of_another(store: Store, tmp_path: Any) -> None:
    store.now = lambda: NOW
    await ensure_default_organization(store)
    at = {"organization_id": DEFAULT_ORGANIZATION, "project_id": DEFAULT_PROJECT, "finished_at": int(NOW)}
    await usage_events.record(store, [make_event(number, cost=10, currency="usd", **at) for number in range(3)])
    await usage_events.record(store, [make_event(9, cost=500, currency="jpy", **at)])
    async with audited_change(store, Actor("test")) as change:
        for unit, currency in (("cost", "usd"), ("tokens", None)):
            fields = {"unit": unit, "currency": currency, "period": "month", "hard_limit": 10**9}
            await budgets.add_budget(change, DEFAULT_ORGANIZATION, None, fields)
    rules, spent = await budgets.read_budgets(store)
    assert {rule.unit: spent[rule.id] for rule in rules} == {"cost": 30, "tokens": 60}
    changed = KvarnConfig.model_validate({"data_dir": str(tmp_path), "metering": {"currency": "jpy"}})
    made = Metering(changed, store)
    with pytest.raises(StoreError, match=r"metering\.currency is 'jpy', but there are budgets in 'usd'"):
        await made.start()
    same = await gateway(store, tmp_path)
    await same.stop()
