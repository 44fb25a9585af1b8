"""Connections that are slow, refused or encrypted: what waits, what fails, and in which words."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from certificates import write_certificate
from kvarn.config.schema import KvarnConfig
from kvarn.gateway import services as gateway_services
from kvarn.gateway.services import Services
from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError, StoreRefusedError
from kvarn.store.keys import new_key
from kvarn.wire.openai.errors import ApiError
from read_only import opened, set_postgres_read_only

_LOCK = 0x6B7661726E


def config_of(url: str, directory: Path, timeout_s: float = 1.0) -> KvarnConfig:
    return KvarnConfig.model_validate({"data_dir": str(directory), "store": {"url": url, "timeout_s": timeout_s}})


@asynccontextmanager
async def being_migrated(url: str) -> AsyncGenerator[None, None]:
    """Another process changes the schema until the block ends."""
    other = await asyncpg.connect(url)
    await other.execute(f"SELECT pg_advisory_lock({_LOCK})")
    try:
        yield
    finally:
        await other.close()


@pytest.fixture
def postgres_url(postgres_service, make_database: Callable[[int], str]) -> str:
    return make_database(postgres_service.port)


async def test_a_migration_waits_for_another_beyond_the_limit_of_queries(postgres_url: str, caplog) -> None:
    async with opened(postgres_url, timeout_s=0.5) as hasty, opened(postgres_url) as store:
        async with being_migrated(postgres_url):
            waiting = asyncio.create_task(migrate.upgrade(hasty))
            await asyncio.sleep(1.5)
            assert not waiting.done()
        await waiting
        await migrate.check(store)
    assert "another process is changing the database's schema" in caplog.text


async def test_a_statement_of_a_migration_takes_as_long_as_it_takes(postgres_url: str) -> None:
    async with opened(postgres_url, timeout_s=0.5) as store:
        async with store.migrating() as connection:
            await connection.execute(text("SELECT pg_sleep(1)"))
        with pytest.raises(StoreAwayError, match=r"did not answer within 0\.5 s"):
            async with store.transaction() as session:
                await session.execute(text("SELECT pg_sleep(1)"))


async def test_a_time_out_of_the_driver_says_that_the_database_is_away(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        with pytest.raises(StoreAwayError, match="did not answer"):
            async with store.reading():
                raise TimeoutError  # as asyncpg does where its own limit comes first


async def test_a_gateway_that_began_without_its_database_tries_until_all_of_it_works(
    postgres_url: str, tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(gateway_services, "_RETRY_S", 0.02)
    faults = [StoreAwayError("cut"), StoreError("half a schema"), StoreError("half a schema"), ValueError("unforeseen")]
    real = migrate.upgrade

    async def upgrade(store: Store) -> None:
        if faults:
            raise faults.pop(0)
        await real(store)

    monkeypatch.setattr(gateway_services.migrate, "upgrade", upgrade)
    caplog.set_level(logging.INFO, "kvarn.gateway")
    services = Services(config_of(postgres_url, tmp_path, timeout_s=5))
    async with being_migrated(postgres_url):
        await services.start()
        async with asyncio.timeout(60):
            while faults:  # noqa: ASYNC110  what it fails at has no event
                await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        await asyncio.gather(*services._tasks)
    own = [each.getMessage() for each in caplog.records if each.name.startswith("kvarn.")]
    assert own[-1] == "the database is back"
    assert services.metering._writing.running
    assert [message for message in caplog.messages if "cannot be used yet" in message] == [
        "the database cannot be used yet: half a schema",
        "the database cannot be used yet: unforeseen",
    ]
    await services.stop()


@pytest.mark.parametrize("schema", ["base", "0011"])
async def test_a_gateway_starts_on_a_read_only_database_that_was_not_prepared(
    own_postgres, make_database, tmp_path: Path, monkeypatch, schema: str
) -> None:
    monkeypatch.setattr(gateway_services, "_RETRY_S", 0.02)
    url = make_database(own_postgres.port)
    async with opened(url, timeout_s=5) as store:
        await migrate.upgrade(store)
        await migrate.downgrade(store, schema)
        if schema != "base":
            async with store.transaction() as session:
                await session.execute(text("ALTER TABLE api_keys DROP COLUMN scopes"))
    await set_postgres_read_only(url, True)
    services = Services(config_of(url, tmp_path, timeout_s=5))
    await services.start()
    try:
        assert await services.identity.key_cache.anybody() is not None
        with pytest.raises(ApiError) as refusal:
            await services.identity.key_cache.bearer_of(new_key().value)
        assert refusal.value.status == 503
        for use in (services.store.reading, services.store.transaction):
            with pytest.raises(StoreAwayError, match="not prepared yet"):
                async with use() as session:
                    await session.execute(text("SELECT scopes FROM api_keys"))
    finally:
        await services.stop()


async def test_a_table_that_is_missing_from_a_prepared_database_is_a_fault(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await migrate.upgrade(store)
        with pytest.raises(ProgrammingError):
            async with store.reading() as session:
                await session.execute(text("SELECT 1 FROM no_such_table"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda url: url.replace("kvarn@", "nobody:secret@"), 'role "nobody" does not exist'),
        (lambda url: f"{url}_not", "does not exist"),
        (lambda url: f"{url}?sslmode=sometimes", "must be one of"),
        (lambda url: f"{url}?sslpassword=secret&no_such_option=1", "no_such_option"),
    ],
)
async def test_a_server_that_refuses_the_connection_is_named_and_counts_as_away(
    postgres_url: str, change: Callable[[str], str], why: str
) -> None:
    async with opened(change(postgres_url), timeout_s=20) as store:
        for use in (migrate.upgrade, migrate.check, _read):
            with pytest.raises(StoreRefusedError, match=why) as raised:
                await use(store)
            told = str(raised.value)
            assert told.startswith("the database postgresql://") and "see store.url" in told
            assert "secret" not in told and "\n" not in told


async def test_a_server_without_room_or_on_its_way_down_is_away_and_no_more(own_postgres, make_database) -> None:
    url = make_database(own_postgres.port)
    other = await asyncpg.connect(url)
    await other.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0")
    async with opened(url.replace("kvarn@", "crowded@")) as store:
        with pytest.raises(StoreAwayError, match="too many connections") as raised:
            await _read(store)
    assert not isinstance(raised.value, StoreRefusedError)
    await other.close()
    own_postgres.kill()
    async with opened(url.replace("127.0.0.1", "localhost")) as store:
        with pytest.raises(StoreAwayError, match="is away") as raised:
            await _read(store)
    assert not isinstance(raised.value, StoreRefusedError)


@pytest.mark.parametrize("path", ["missing/kvarn.db", ""])
async def test_a_path_at_which_no_file_can_be_is_named(tmp_path: Path, path: str) -> None:
    async with opened(f"sqlite:///{tmp_path}/{path}") as store:
        for use in (migrate.upgrade, migrate.check, _read):
            with pytest.raises(StoreRefusedError, match=f"the database sqlite:///{tmp_path}/{path}.* cannot be used"):
                await use(store)


async def test_a_file_that_is_no_database_is_named_by_the_check_too(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database at all, but a text of some length" * 50)
    async with opened(f"sqlite:///{tmp_path}/notes.txt") as store:
        with pytest.raises(StoreError, match=r"notes\.txt cannot be used: file is not a database"):
            await migrate.check(store)


def test_a_certificates_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    url = "postgresql://kvarn@db/kvarn?sslmode=verify-full&sslrootcert=/nowhere/ca.pem"
    with pytest.raises(StoreError, match=r"no file /nowhere/ca\.pem \(sslrootcert\)"):
        Store.open(config_of(url, tmp_path))


async def test_a_gateway_does_not_start_where_its_database_refuses_it(postgres_url: str, tmp_path: Path) -> None:
    services = Services(config_of(postgres_url.replace("kvarn@", "nobody@"), tmp_path))
    with pytest.raises(StoreRefusedError, match="nobody"):
        await services.start()
    await services.stop()


async def test_libpqs_ways_to_encrypt_are_understood(own_postgres, make_database, tmp_path: Path) -> None:
    url = make_database(own_postgres.port)
    assert await _is_encrypted(f"{url}?sslmode=disable") is False
    assert await _is_encrypted(f"{url}?sslmode=prefer&application_name=kvarn") is False
    with pytest.raises(StoreAwayError, match="SSL"):
        await _is_encrypted(f"{url}?sslmode=require")

    certificate = _serve_encrypted(own_postgres, tmp_path)
    trusted = f"sslrootcert={certificate}"
    assert await _is_encrypted(f"{url}?sslmode=disable") is False
    for mode in ("prefer", "require", f"verify-ca&{trusted}", f"verify-full&{trusted}"):
        assert await _is_encrypted(f"{url.replace('127.0.0.1', 'localhost')}?sslmode={mode}") is True
    with pytest.raises(StoreRefusedError, match="certificate"):  # made out to `localhost`
        await _is_encrypted(f"{url}?sslmode=verify-full&{trusted}")


async def _read(store: Store) -> None:
    async with store.reading() as session:
        await session.execute(text("SELECT 1"))


async def _is_encrypted(url: str) -> bool:
    async with opened(url, timeout_s=5) as store, store.reading() as session:
        return bool(await session.scalar(text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")))


def _serve_encrypted(service, directory: Path) -> Path:
    """Start a PostgreSQL again, with a certificate made out to `localhost`; the certificate's file."""
    written, secret = write_certificate(directory, "localhost")
    public, private = service.home / "server.crt", service.home / "server.key"
    shutil.copy(written, public)
    shutil.copy(secret, private)
    private.chmod(0o600)
    if service.user is not None:
        shutil.chown(private, service.user)
    service.kill()
    settings = {"ssl": "on", "ssl_cert_file": public, "ssl_key_file": private}
    service.command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    service.start()
    return written
