"""An older release and a newer one on one database: what each serves on, and what a new schema may change."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, insert, inspect, make_url, select, text

from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.errors import StoreBusyError, StoreError
from kvarn.store.models import Base

DUMP = Path(__file__).with_name("database_2026_11.sql")
OLDEST, BEFORE, NEWEST = "0011", migrate.RELEASES["0.1"], migrate.head()
NOW = 1_790_000_000


def as_release_of(monkeypatch: pytest.MonkeyPatch, revision: str) -> None:
    """From now on this is the Kvarn whose newest revision that was."""
    monkeypatch.setattr(migrate, "head", lambda: revision)


async def marked(store: Store, version: str, since: str | None) -> None:
    async with store.migrating() as connection:
        values = {"version": version, "since": since}
        await connection.execute(
            text("UPDATE alembic_version SET version_num = :version, compatible_since = :since"), values
        )


def test_the_newest_schema_is_the_one_of_the_release_in_preparation() -> None:
    assert list(migrate.RELEASES.values())[-1] == NEWEST


async def test_a_release_serves_on_a_newer_schema_that_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvarn.store")
    assert await migrate.read_state(store) == migrate.SchemaState(NEWEST, migrate.COMPATIBLE_SINCE)
    as_release_of(monkeypatch, migrate.COMPATIBLE_SINCE)
    store.is_prepared = False
    await migrate.upgrade(store)
    assert store.is_prepared and "of a newer release, which this one serves on" in caplog.text
    await migrate.check(store)
    as_release_of(monkeypatch, OLDEST)
    with pytest.raises(StoreError, match="use the Kvarn that upgraded it"):
        await migrate.upgrade(store)
    with pytest.raises(StoreError, match=f"this Kvarn needs {OLDEST}"):
        await migrate.check(store)


async def test_a_schema_that_says_nothing_is_for_its_own_release(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await marked(store, "9999", None)
    with pytest.raises(StoreError, match="use the Kvarn that upgraded it"):
        await migrate.upgrade(store)
    await marked(store, "9999", NEWEST)
    await migrate.upgrade(store)
    await migrate.check(store)


async def test_a_downgrade_takes_the_mark_along(store: Store) -> None:
    await migrate.downgrade(store, "0.1")
    assert await migrate.read_state(store) == migrate.SchemaState(BEFORE)
    await migrate.upgrade(store)
    assert await migrate.read_state(store) == migrate.SchemaState(NEWEST, migrate.COMPATIBLE_SINCE)


def shape_of(connection: Connection) -> tuple[dict[str, dict[str, Any]], dict[str, set[Any]]]:
    """The columns of each table, and what it refuses."""
    inspector = inspect(connection)
    columns, refusals = {}, {}
    for table in inspector.get_table_names():
        columns[table] = {column["name"]: column for column in inspector.get_columns(table)}
        unique = [each["column_names"] for each in inspector.get_unique_constraints(table)]
        unique += [each["column_names"] for each in inspector.get_indexes(table) if each["unique"]]
        foreign = [[*each["constrained_columns"], each["referred_table"]] for each in inspector.get_foreign_keys(table)]
        refusals[table] = {tuple(each) for each in (*unique, *foreign)}
    return columns, refusals


async def test_the_newest_schema_only_adds_to_the_oldest_that_is_served_on_it(store: Store) -> None:
    async with store.engine.connect() as connection:
        newest, refusals = await connection.run_sync(shape_of)
    await migrate.downgrade(store, migrate.COMPATIBLE_SINCE)
    async with store.engine.connect() as connection:
        oldest, refusals_before = await connection.run_sync(shape_of)
    hint = "take it away a release later, or set COMPATIBLE_SINCE to this revision"
    for table, columns in oldest.items():
        assert table in newest, f"{table} is gone: {hint}"
        for name, column in columns.items():
            found = newest[table].get(name)
            assert found is not None, f"{table}.{name} is gone: {hint}"
            same = repr(found["type"]) == repr(column["type"])
            assert same and found["nullable"] >= column["nullable"], (
                f"{table}.{name} is another or asks for more: {hint}"
            )
        for name, column in newest[table].items():
            has_value = name in columns or column["nullable"] or column["default"] is not None
            assert has_value, f"{table}.{name} has no default, which the older release does not write: {hint}"
        assert refusals[table] <= refusals_before[table], f"{table} refuses more: {hint}"


@pytest.fixture
async def old(store: Store, tmp_path: Path) -> Store:
    """The database of November 2026, on each kind of database."""
    await migrate.downgrade(store, OLDEST)
    path = tmp_path / "old.db"
    database = sqlite3.connect(path)
    database.executescript(DUMP.read_text(encoding="utf-8"))
    database.close()
    source = Store(make_url(f"sqlite+aiosqlite:///{path}"))

    def copy(connection: Connection, rows: dict[str, list[Any]] | None = None) -> dict[str, list[Any]]:
        tables = MetaData()
        tables.reflect(connection)
        if rows is None:
            ordered = [table for table in tables.sorted_tables if table.name != "alembic_version"]
            return {
                table.name: [dict(row) for row in connection.execute(select(table)).mappings()] for table in ordered
            }
        for name, found in rows.items():
            if found:
                connection.execute(insert(tables.tables[name]), found)
        return rows

    async with source.migrating() as connection:
        rows = await connection.run_sync(copy)
    await source.close()
    async with store.migrating() as connection:
        await connection.run_sync(copy, rows)
    return store


@asynccontextmanager
async def under_load(store: Store, *statements: str) -> AsyncGenerator[Callable[[], Coroutine[Any, Any, None]], None]:
    """Has statements of an older release executed one after the other until the block ends; they may not fail. Gives a
    function that waits until some more were."""
    done, more, stopping = 0, asyncio.Condition(), asyncio.Event()

    async def work(worker: int) -> None:
        nonlocal done
        while not stopping.is_set():
            async with store.transaction() as session:
                for statement in statements:
                    await session.execute(text(statement), {"id": f"load-{worker}-{done}", "now": NOW})
            async with more:
                done += 1
                more.notify_all()

    async def go_on() -> None:
        wanted = done + 20
        async with asyncio.timeout(120), more:
            await more.wait_for(lambda: done >= wanted or any(task.done() for task in tasks))

    tasks = [asyncio.create_task(work(number)) for number in range(3)]
    try:
        yield go_on
    finally:
        stopping.set()
        await asyncio.gather(*tasks)


AUDIT = (
    "INSERT INTO audit_log (id, organization_id, effective_at, type, actor, object_id, detail)"
    " VALUES (:id, 'org-default', :now, 'load', 'older release', :id, '{}')"
)
KEPT = "UPDATE api_keys SET last_used_at = :now"


async def count(store: Store, what: str) -> int:
    async with store.reading() as session:
        return int(await session.scalar(text(f"SELECT count(*) FROM {what}")) or 0)


async def test_the_oldest_database_is_upgraded_and_taken_back_a_release_under_load(old: Store) -> None:
    """What an older release writes goes on meanwhile, several gateways start at once, and no row is lost."""
    tables = ["api_keys", "usage_events", "files", "conversations", "responses", "batches", "budgets"]
    before = {name: await count(old, name) for name in tables}
    others = [Store(old.url, timeout_s=30) for _ in range(3)]
    load = Store(old.url, timeout_s=30)
    load.is_prepared = True
    async with under_load(load, AUDIT, KEPT) as go_on:
        await go_on()
        await asyncio.gather(*[migrate.upgrade(each) for each in (old, *others)])
        await go_on()
        assert {name: await count(old, name) for name in tables} == before
        await migrate.downgrade(old, "0.1")
        await go_on()
        assert (await migrate.read_state(old)).version == BEFORE
        assert {name: await count(old, name) for name in tables} == before
        await migrate.upgrade(old)
        await go_on()
    assert await count(old, "audit_log WHERE type = 'load'") >= 80
    await migrate.check(old)
    for each in (load, *others):
        await each.close()


async def test_a_table_that_is_in_use_for_long_is_not_waited_for_in_front_of_everybody(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if store.is_sqlite:
        pytest.skip("SQLite's readers hold up no change of the schema")
    await migrate.downgrade(store, BEFORE)
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(migrate, "_PAUSE_S", 0.01)
    async with store.migrating() as report:
        await report.execute(text("SELECT * FROM alembic_version"))
        with pytest.raises(StoreBusyError, match="in use for long"):
            await migrate.upgrade(store)
    assert caplog.text.count("is tried again") == migrate._TRIES - 1
    await migrate.upgrade(store)
    assert set(Base.metadata.tables) <= set(await _tables(store))


async def _tables(store: Store) -> list[str]:
    async with store.engine.connect() as connection:
        return await connection.run_sync(lambda sync: inspect(sync).get_table_names())
