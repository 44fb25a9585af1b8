"""Events reach the database once: after an outage, after a death, and past an event that cannot be written."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from kvarn.config.schema import KvarnConfig
from kvarn.metering import journal as journals
from kvarn.metering import service
from kvarn.metering import writer as writers
from kvarn.metering.event import InFlight, Measured
from kvarn.metering.journal import LiveJournal
from kvarn.metering.service import Metering
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import OutboxEntry, UsageEvent
from kvarn.store.repositories.usage import events as usage_events
from logs import of_kvarn
from metric_values import metric_value
from sample_usage import make_budget, make_event, make_request

FINISHED = Measured("finished", 10, 4, 5, 1_790_000_001.0, 0.1)


@asynccontextmanager
async def metering(store: Store, directory: Path, **settings: Any) -> AsyncGenerator[Metering, None]:
    config = KvarnConfig.model_validate(
        {"data_dir": str(directory), "metering": {"flush_interval_s": 0.01, "budget_refresh_s": 0.05, **settings}}
    )
    made = Metering(config, store)
    made.open()
    try:
        await made.start()
    except StoreAwayError:
        await made.stop()
        raise
    try:
        yield made
    finally:
        await made.stop()


def work(made: Metering, number: int, had: Measured = FINISHED, **changes: Any) -> None:
    """A request through the ledger."""
    request: InFlight = make_request(number, **changes)
    made.finish(made.begin(request, 0.0), request, had)


async def ids(store: Store) -> list[str]:
    async with store.reading() as session:
        return sorted((await session.scalars(select(UsageEvent.id))).all())


def journals_in(directory: Path) -> int:
    """Of gateways that live, or have died and are not yet taken over."""
    return len(list((directory / "usage").glob("*.db")))


def away(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Take the database away; what is returned brings it back."""

    async def nothing(*_: object) -> set[str]:
        raise StoreAwayError("the database is away")

    monkeypatch.setattr(usage_events, "record", nothing)
    return monkeypatch.undo


async def test_events_wait_on_disk_while_the_database_is_away(
    store: Store, tmp_path: Path, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metering(store, tmp_path) as made:
        back = away(monkeypatch)
        for number in range(50):
            work(made, number)
        await wait_until(lambda: metric_value(made.metrics.spool_bytes) > 0)
        assert await ids(store) == []
        back()
        await wait_until(lambda: metric_value(made.metrics.ledger_lag) == 0)
    assert len(await ids(store)) == 50
    assert list((tmp_path / "usage").iterdir()) == []
    async with store.reading() as session:
        assert not (await session.scalars(select(OutboxEntry))).all(), "there is no Kafka to publish to"


async def test_what_could_not_be_written_at_the_end_is_found_by_the_next_start(
    store: Store, tmp_path: Path, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metering(store, tmp_path) as made:
        back = away(monkeypatch)
        for number in range(5):
            work(made, number)
        made.begin(make_request(9), 0.0).watch(_Counts())  # type: ignore[union-attr]
    back()
    assert await ids(store) == []
    async with metering(store, tmp_path):
        await wait_until(lambda: journals_in(tmp_path) == 1)
    assert await ids(store) == [*[f"use_{number}" for number in range(5)], "use_9"]
    async with store.reading() as session:
        lost = await session.get(UsageEvent, "use_9")
    assert lost is not None and (lost.outcome, lost.output_tokens) == ("lost", 2)


class _Counts:
    prompt_tokens, cached_tokens, completion_tokens, first_token = 3, 0, 2, None


async def test_a_living_gateway_takes_over_from_one_that_died_beside_it(
    store: Store, tmp_path: Path, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_LOOK_FOR_DEAD_S", 0.05)
    async with metering(store, tmp_path) as made:
        other = LiveJournal(tmp_path / "usage")
        other.finish(other.begin(make_request(1), 0.0), make_event(1))
        other.begin(make_request(2), 0.0).watch(_Counts())  # type: ignore[union-attr]
        await asyncio.sleep(0.3)
        assert await ids(store) == []  # it lives
        other.close()
        await wait_until(lambda: metric_value(made.metrics.events.labels("lost")) == 1)
    assert await ids(store) == ["use_1", "use_2"]
    assert list((tmp_path / "usage").iterdir()) == []


async def test_an_event_that_was_spooled_and_whose_slot_was_not_freed_counts_as_it_ended(
    store: Store, tmp_path: Path, wait_until: Any
) -> None:
    journal = LiveJournal(tmp_path / "usage")
    slot = journal.begin(make_request(1), 0.0)
    assert slot is not None
    slot.watch(_Counts())
    journal.finish(None, make_event(1))  # died before the slot was freed
    journal.close()
    async with metering(store, tmp_path):
        await wait_until(lambda: journals_in(tmp_path) == 1)
    async with store.reading() as session:
        (event,) = (await session.scalars(select(UsageEvent))).all()
    assert (event.outcome, event.output_tokens) == ("finished", 5)


@pytest.mark.parametrize("model", [None, "x" * 300], ids=["unreadable", "too long"])
async def test_an_event_that_cannot_be_written_is_kept_in_a_file_and_holds_up_no_other(
    store: Store, tmp_path: Path, wait_until: Any, model: str | None
) -> None:
    if store.is_sqlite and model is not None:
        pytest.skip("SQLite takes a text of any length")
    async with metering(store, tmp_path) as made:
        work(made, 1)
        work(made, 2, model=model)
        work(made, 3)
        await wait_until(lambda: metric_value(made.metrics.rejected) == 1)
        await wait_until(lambda: metric_value(made.metrics.ledger_lag) == 0)
    assert await ids(store) == ["use_1", "use_3"]
    rejected = (tmp_path / "usage" / "rejected").read_text()
    assert rejected.count("\n") == 1 and ("use_2" in rejected or b"use_2".hex() in rejected)


async def test_what_never_gets_to_the_ledger_is_not_charged_to_budgets(
    store: Store, tmp_path: Path, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = make_budget(period="total", hard_limit=30)

    def refused(made: Metering) -> bool:
        (limit,) = made.budgets.limits(("org-a",), 1, 0, FINISHED.finished)[1]
        assert limit.spending is not None
        return limit.spending.unread >= limit.maximum

    async with metering(store, tmp_path, budget_refresh_s=60) as made:
        made.budgets.replace([rule], {}, FINISHED.finished)
        back = away(monkeypatch)
        work(made, 1, model=None)  # cannot be read again
        with monkeypatch.context() as full:
            full.setattr(journals, "MAX_UNWRITTEN", 0)
            full.setattr(LiveJournal, "append", _no_room)
            work(made, 2)
        assert refused(made), "whatever has ended counts while the database is away"
        back()
        await wait_until(lambda: not refused(made))
        work(made, 3)
        work(made, 4)
        await wait_until(lambda: metric_value(made.metrics.ledger_lag) == 0)
        assert refused(made), "what is written is spent"
    assert await ids(store) == ["use_3", "use_4"]


def _no_room(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


async def test_a_dead_journal_full_of_unreadable_records_is_read_to_its_end(
    store: Store, tmp_path: Path, wait_until: Any
) -> None:
    journal = LiveJournal(tmp_path / "usage")
    for _ in range(writers.BATCH_EVENTS):
        journal.append(b"\xc1 of another version")
    journal.finish(None, make_event(1))
    journal.close()
    async with metering(store, tmp_path):
        await wait_until(lambda: journals_in(tmp_path) == 1)
    assert await ids(store) == ["use_1"]
    assert (tmp_path / "usage" / "rejected").read_text().count("\n") == writers.BATCH_EVENTS


async def test_what_has_no_room_on_disk_is_written_from_memory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_LAST_WRITE_S", 120.0)  # on a busy machine some would be left to the next start
    async with metering(store, tmp_path, max_spool_bytes=1 << 20) as made:
        back = away(monkeypatch)
        for number in range(5000):
            work(made, number)
        assert made._journal is not None and made._journal.unwritten
        back()
    assert len(await ids(store)) == 5000
    assert list((tmp_path / "usage").iterdir()) == []


async def test_a_price_of_a_model_that_is_not_served_is_pointed_out(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with metering(store, tmp_path, prices=[{"model": "kvarn-dmeo"}, {"model": "*"}, {"model": "kvarn-demo"}]):
        assert [record.getMessage().split(": ")[1] for record in of_kvarn(caplog)] == ["kvarn-dmeo"]
