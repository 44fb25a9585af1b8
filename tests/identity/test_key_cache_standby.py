"""Keys while only a standby can be asked that lags behind what a gateway has heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import asyncpg
import pytest
from sqlalchemy import make_url

from kvarn.config.platform import AuthConfig
from kvarn.identity.key_cache import KeyCache
from kvarn.store import postgres
from kvarn.store.connecting import with_hosts_apart
from kvarn.store.engine import Store
from kvarn.store.migrate import upgrade
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.store.repositories.tenants.organizations import create_organization
from kvarn.wire.openai.errors import ApiError


@pytest.fixture
async def pair(own_postgres, standby, make_database) -> AsyncGenerator[tuple[Store, str], None]:
    """A store that names a server and its standby, with the newest schema; and the URL of the standby alone."""
    url = make_database(own_postgres.port).replace("postgresql:", "postgresql+asyncpg:")
    hosts = f"127.0.0.1:{own_postgres.port},127.0.0.1:{standby.port}"
    store = Store(make_url(with_hosts_apart(url.replace(f"127.0.0.1:{own_postgres.port}", hosts))), timeout_s=20)
    await upgrade(store)
    yield store, url.replace("+asyncpg", "").replace(str(own_postgres.port), str(standby.port))
    await store.close()


async def stop_following(standby_url: str, keys: int) -> None:
    """Have the standby take in nothing more, once it has that many keys."""
    async with asyncio.timeout(20):
        while True:
            try:
                session = await asyncpg.connect(standby_url)
                if await session.fetchval("SELECT count(*) FROM api_keys") == keys:
                    break
                await session.close()
            except asyncpg.PostgresError:
                pass
            await asyncio.sleep(0.02)
    await session.execute("SELECT pg_wal_replay_pause()")
    while await session.fetchval("SELECT pg_get_wal_replay_pause_state()") != "paused":  # noqa: ASYNC110  tells nobody
        await asyncio.sleep(0.02)
    await session.close()


async def test_what_was_revoked_stays_so_while_a_standby_lags_and_new_keys_wait(
    pair, own_postgres, monkeypatch
) -> None:
    monkeypatch.setattr(postgres, "_LOOK_EVERY_S", 0.01)
    store, standby_url = pair
    now = 1000.0
    key_cache = KeyCache(store, AuthConfig(refresh_s=0.25, stale_s=300), lambda: now)
    tenants = [(await create_organization(store, name)).owner for name in "ab"]
    values, ids = [], []
    async with audited_change(store, Actor("test")) as change:
        for owner in tenants:
            key, value = await add_key(change, owner.organization_id, owner.project_id, KeyRequest(name="k"))
            ids.append(key.id)
            values.append(value)
    await stop_following(standby_url, keys=2)
    assert [await key_cache.bearer_of(value) is not None for value in values] == [True, True]
    async with audited_change(store, Actor("test")) as change:
        await revoke_key(change, tenants[0].organization_id, ids[0])
        _, late = await add_key(change, tenants[1].organization_id, tenants[1].project_id, KeyRequest(name="late"))
    now += 1
    assert await key_cache.bearer_of(values[1]) is not None, "asks, and so hears of it"

    own_postgres.kill()
    for _ in range(3):
        now += 2
        assert await key_cache.bearer_of(values[1]) is not None, "from memory"
        await key_cache._changes.settle()
        for value in (values[0], late):
            with pytest.raises(ApiError) as refusal:
                await key_cache.bearer_of(value)
            assert refusal.value.status == 503
    now += 300
    with pytest.raises(ApiError):
        await key_cache.bearer_of(values[1])

    own_postgres.start()
    now += 2
    await key_cache.bearer_of(late)
    assert [await key_cache.bearer_of(value) is not None for value in (*values, late)] == [False, True, True]
    await key_cache.close()
