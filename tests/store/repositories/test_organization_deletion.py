"""The end of an organisation, and of its usage: now, later, in several steps, and again."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError, StoreAwayError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.models import AuditEntry, Base, BilledEvent, ErasedOrganization, OutboxEntry, UsageEvent
from kvarn.store.owner import Principal
from kvarn.store.repositories import organization_deletion
from kvarn.store.repositories.organization_deletion import USAGE, delete_erased_usage, delete_organization
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.usage import billing
from kvarn.store.repositories.usage import events as usage_events
from new_tenants import create_organization
from sample_usage import make_event

LEDGER = {model.__tablename__ for model in (*USAGE, OutboxEntry, BilledEvent)}


async def use(store: Store, who: Principal, first: int, count: int) -> None:
    """So many requests of an organisation, recorded, to be published, and billed."""
    mine = {"organization_id": who.organization_id, "project_id": who.project_id}
    events = [
        make_event(number, finished_at=1_790_000_000 + number % 3 * 3600, model=f"m{number % 5}", **mine)
        for number in range(first, first + count)
    ]
    await usage_events.record(store, events, [b"{}"] * count)
    await billing.bill(store, events)


async def rows(store: Store) -> dict[str, int]:
    """Of every table that has any."""
    found = {}
    async with store.reading() as session:
        for table in Base.metadata.sorted_tables:
            found[table.name] = int(await session.scalar(select(func.count()).select_from(table)) or 0)
    return {name: count for name, count in found.items() if count}


def end(store: Store, who: Principal, **options: Any) -> Any:
    return delete_organization(store, partial(audited_change, store, Actor("test")), who.organization_id, **options)


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(organization_deletion, "_MANY_ROWS", 4)


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("later", [False, True])
async def test_usage_that_is_erased_leaves_nothing_at_once_or_later(store: Store, later: bool) -> None:
    red, blue = [await create_organization(store, name) for name in ("red", "blue")]
    await use(store, blue, 100, 11)
    before = await rows(store)
    await use(store, red, 0, 30)
    with_both = await rows(store)
    assert set(with_both) >= LEDGER
    if later:
        await end(store, red)
        assert {name: count for name, count in (await rows(store)).items() if name in LEDGER} == {
            name: count for name, count in with_both.items() if name in LEDGER
        }
    await end(store, red, erase_usage=True)
    after = await rows(store)
    assert {name: after[name] for name in LEDGER} == {name: before[name] for name in LEDGER}
    await use(store, red, 30, 3)  # still on its way when it was erased
    await end(store, red, erase_usage=True)  # may be asked for again
    assert {name: (await rows(store))[name] for name in LEDGER} == {name: before[name] for name in LEDGER}
    async with store.reading() as session:
        assert (await session.scalars(select(ErasedOrganization.id))).all() == [red.organization_id]
        news = select(AuditEntry.type).where(
            AuditEntry.organization_id == DEFAULT_ORGANIZATION, AuditEntry.object_id == red.organization_id
        )
        types = list(await session.scalars(news))
    assert types.count("organization.deleted") == 1
    assert types.count("organization.usage_erased") == (2 if later else 1)


async def test_usage_of_an_organisation_that_another_database_knows_is_erased(store: Store) -> None:
    """Where `kvarn meter` has a database of its own, there are hours and nothing else."""
    stranger = await create_organization(store, "red")
    await use(store, stranger, 0, 3)
    await end(store, stranger)
    async with store.transaction() as session:
        for table in ("audit_log", "usage_events", "usage_periods"):
            await session.execute(Base.metadata.tables[table].delete())
    await end(store, stranger, erase_usage=True)
    assert "billed_hours" not in await rows(store)


async def test_an_id_that_nobody_ever_had_is_unknown(store: Store) -> None:
    stranger = await create_organization(store, "red")
    await end(store, stranger)
    with pytest.raises(NotFoundError):
        await end(store, stranger)
    with pytest.raises(NotFoundError):
        await delete_organization(store, partial(audited_change, store, Actor("test")), "org-none", erase_usage=True)
    assert "erased_organizations" not in await rows(store)


async def test_a_deletion_that_was_interrupted_is_finished_by_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    red = await create_organization(store, "red")
    await use(store, red, 0, 30)
    monkeypatch.setattr(organization_deletion, "_MANY_ROWS", 4)
    drop, calls = organization_deletion.drop_plain, []

    async def drop_until_it_is_away(*given: Any) -> int:
        calls.append(given)
        if len(calls) > 3:
            raise StoreAwayError("away")
        return await drop(*given)

    with monkeypatch.context() as away:
        away.setattr(organization_deletion, "drop_plain", drop_until_it_is_away)
        with pytest.raises(StoreAwayError):
            await end(store, red, erase_usage=True)
    async with store.reading() as session:
        assert 0 < int(await session.scalar(select(func.count()).select_from(UsageEvent)) or 0) < 30
    await end(store, red, erase_usage=True)
    assert not LEDGER & set(await rows(store))
    assert "organizations" not in await rows(store)


async def test_late_usage_of_an_erased_organization_is_swept_and_that_of_others_stays(store: Store) -> None:
    await usage_events.note_erased(store, "org-a")
    await usage_events.note_erased(store, "org-a")  # an erasure that was interrupted is done again
    late = [make_event(1), make_event(2, organization_id="org-b"), make_event(3)]
    await usage_events.record(store, late, [b"1", b"2", b"3"])
    await billing.bill(store, late)
    assert await delete_erased_usage(store) > 0
    left = {name: count for name, count in (await rows(store)).items() if name in LEDGER}
    assert left.pop("usage_periods") == 3 and set(left.values()) == {1}
    async with store.reading() as session:
        assert (await session.scalars(select(UsageEvent.organization_id))).all() == ["org-b"]
        assert (await session.scalars(select(OutboxEntry.payload))).all() == [b"2"]
    assert await delete_erased_usage(store) == 0
