"""A database that answers and takes no writes: what waits, what is read, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest
from sqlalchemy import text

from kvarn.store import health
from kvarn.store.engine import Store
from kvarn.store.errors import DiskFullError, StoreAwayError, StoreReadOnlyError
from kvarn.store.health import StoreState
from kvarn.store.migrate import upgrade
from kvarn.store.repositories import leases
from kvarn.store.repositories.leases import probe_writes
from new_tenants import create_organization
from read_only import SqliteSwitch, opened, set_postgres_read_only


async def read(store: Store, query: str = "SELECT count(*) FROM organizations") -> object:
    async with store.reading() as session:
        return await session.scalar(text(query))


async def report(store: Store, query: str) -> object:
    async with store.reporting() as session:
        return await session.scalar(text(query))


async def write_much(store: Store) -> None:
    async with store.transaction() as session:
        await session.execute(text("CREATE TABLE IF NOT EXISTS ballast (content TEXT)"))
        await session.execute(text("INSERT INTO ballast VALUES (:content)"), {"content": "x" * 100_000})


@pytest.mark.parametrize("pragmas", [("query_only=1", "query_only=0"), ("max_page_count=1", "max_page_count=99999")])
async def test_a_file_that_cannot_be_written_is_read(
    tmp_path: Path, pragmas: tuple[str, str], caplog, monkeypatch
) -> None:
    monkeypatch.setattr(health, "_FULL_S", 0.0)
    caplog.set_level(logging.INFO, "kvarn.store")
    async with opened(f"sqlite:///{tmp_path}/kvarn.db") as store:
        await upgrade(store)
        switch = SqliteSwitch(store, *pragmas)
        switch.is_on = True
        for _ in range(3):
            with pytest.raises(StoreReadOnlyError, match=r"takes no writes: .*(readonly|full)"):
                await write_much(store)
            assert await read(store) == 0
            assert store.health.state is StoreState.READ_ONLY, "reading does not make it better"
        switch.is_on = False
        await write_much(store)
        await probe_writes(store)
        assert store.health.state is StoreState.UP
    assert [record.levelname for record in caplog.records if record.name == "kvarn.store"] == ["WARNING", "INFO"]


async def test_a_disk_with_room_for_the_probe_alone_stays_full_until_nothing_was_refused_for_a_minute(
    tmp_path: Path,
) -> None:
    now = 1000.0
    async with opened(f"sqlite:///{tmp_path}/kvarn.db") as store:
        store.health = health.StoreHealth(lambda: now)
        await upgrade(store)
        await probe_writes(store)
        switch = SqliteSwitch(store, "max_page_count=1", "max_page_count=99999")
        switch.is_on = True
        for _ in range(3):
            with pytest.raises(DiskFullError):
                await write_much(store)
            now += 59
            await probe_writes(store)  # its row is there already, and needs no room
            assert store.health.state is StoreState.READ_ONLY
        now += 1
        await probe_writes(store)
        assert store.health.state is StoreState.UP


async def test_a_probe_that_wrote_nothing_tells_nothing(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/kvarn.db") as store:
        await upgrade(store)
        switch = SqliteSwitch(store)
        switch.is_on = True
        with pytest.raises(StoreReadOnlyError):
            await probe_writes(store)
        switch.is_on = False
        assert await leases.take(store, "probe", "another gateway", 60)
        await probe_writes(store)
        assert store.health.state is StoreState.READ_ONLY
        async with store.transaction() as session:
            await session.execute(text("UPDATE leases SET until_ms = 0"))
        await probe_writes(store)
        assert store.health.state is StoreState.UP


async def test_a_server_that_was_told_to_take_no_writes_is_read_and_its_connections_are_replaced(
    own_postgres, make_database
) -> None:
    url = make_database(own_postgres.port)
    async with opened(url) as store:
        await upgrade(store)
        await create_organization(store, "a")
        before = await read(store, "SELECT pg_backend_pid()")
        assert await read(store, "SELECT pg_backend_pid()") == before
        await set_postgres_read_only(url, True)
        with pytest.raises(StoreReadOnlyError, match=r"takes no writes: .*read-only transaction"):
            await create_organization(store, "b")
        assert await read(store, "SELECT pg_backend_pid()") != before, "it may lead to another server now"
        with pytest.raises(StoreReadOnlyError):
            await probe_writes(store)
        assert store.health.state is StoreState.READ_ONLY and await read(store) == 1
        await upgrade(store)  # nothing to do, so nothing to write: a gateway may start
        own_postgres.kill()
        with pytest.raises(StoreAwayError) as away:
            while True:  # the server's processes end one after the other
                await read(store)
        assert not isinstance(away.value, StoreReadOnlyError) and store.health.state is StoreState.AWAY
        own_postgres.start()
        await set_postgres_read_only(url, False)
        await probe_writes(store)
        assert store.health.state is StoreState.UP
        await create_organization(store, "b")


async def test_all_connections_of_a_demoted_server_go_with_the_first_refused_write(own_postgres, make_database) -> None:
    """Those that only read would go on reading what the server knows, and miss what is withdrawn elsewhere."""
    url = make_database(own_postgres.port)
    async with opened(url) as store:
        await upgrade(store)
        old = set(await asyncio.gather(*[read(store, "SELECT pg_backend_pid() FROM pg_sleep(0.2)") for _ in range(4)]))
        assert len(old) == 4
        await set_postgres_read_only(url, True)
        with pytest.raises(StoreReadOnlyError):
            await probe_writes(store)
        new = set(await asyncio.gather(*[read(store, "SELECT pg_backend_pid() FROM pg_sleep(0.2)") for _ in range(4)]))
        assert not old & new


async def test_after_a_failover_the_server_that_takes_writes_is_found(own_postgres, make_database, standby) -> None:
    first = make_database(own_postgres.port)
    hosts = f"127.0.0.1:{own_postgres.port},127.0.0.1:{standby.port}"
    url = first.replace(f"127.0.0.1:{own_postgres.port}", hosts)
    second = first.replace(str(own_postgres.port), str(standby.port))
    async with opened(url) as store:
        await upgrade(store)
        await create_organization(store, "a")
        assert await report(store, "SELECT inet_server_port()") == own_postgres.port
        async with opened(f"{second}?target_session_attrs=read-write") as other:
            with pytest.raises(StoreAwayError, match="None of the hosts match"):
                await read(other)
        async with opened(second) as other:
            while not await _follows(other):  # noqa: ASYNC110  replication tells nobody how far it is
                await asyncio.sleep(0.02)
            with pytest.raises(StoreReadOnlyError, match="read-only transaction"):  # a real one, in recovery
                await create_organization(other, "b")
            assert await read(other) == 1
            assert await read(other, "SELECT pg_promote()") is True
        await set_postgres_read_only(first, True)
        with pytest.raises(StoreReadOnlyError):
            await create_organization(store, "b")
        assert await read(store, "SELECT inet_server_port()") == standby.port
        await create_organization(store, "b")
        assert await read(store) == 2
        own_postgres.kill()
        await create_organization(store, "c")
        assert await read(store) == 3
        await set_postgres_read_only(second, True)
        with pytest.raises(StoreReadOnlyError):
            await create_organization(store, "d")
        with pytest.raises(StoreAwayError, match="None of the hosts match"):
            await read(store)
        await set_postgres_read_only(second, False)
        assert await read(store) == 3
        own_postgres.start()


async def _follows(store: Store, organizations: int = 1) -> bool:
    try:
        return await read(store) == organizations
    except Exception:
        return False


async def test_a_host_that_hangs_leaves_the_others_their_time(postgres_service, make_database) -> None:
    url = make_database(postgres_service.port)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{postgres_service.port}"
        async with opened(url.replace(f"127.0.0.1:{postgres_service.port}", hosts), timeout_s=2) as store:
            assert await read(store, "SELECT 1") == 1


async def test_where_no_host_answers_each_is_named(tmp_path: Path) -> None:
    async with opened("postgresql://kvarn@127.0.0.1:1,localhost:2/kvarn") as store:
        with pytest.raises(StoreAwayError, match=r"127\.0\.0\.1: .*; localhost: "):
            await read(store, "SELECT 1")
