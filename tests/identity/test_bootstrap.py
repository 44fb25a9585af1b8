"""The first key, and when a server asks for one."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path

import pytest
from sqlalchemy import event

from kvarn.config.load import ConfigError
from kvarn.config.schema import KvarnConfig
from kvarn.gateway.services import Services
from kvarn.identity.bootstrap import FILE, ensure_admin_key
from kvarn.identity.open_server import auth_mode
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.keys import is_key, lookup_of
from kvarn.store.models import ApiKey
from kvarn.store.owner import Role
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import list_all_keys
from kvarn.store.repositories.tenants.organizations import ensure_default_organization
from kvarn.store.repositories.tenants.principals import find_grant


def config_of(directory: Path, url: str | None = None, **auth: object) -> KvarnConfig:
    store = {} if url is None else {"url": url}
    return KvarnConfig.model_validate({"data_dir": str(directory), "store": store, "auth": auth})


async def keys_in(store: Store) -> list[ApiKey]:
    async with store.reading() as session:
        return await list_all_keys(session, DEFAULT_ORGANIZATION)


async def test_the_first_key_administers_and_only_its_user_can_read_its_file(store: Store, tmp_path, caplog) -> None:
    await ensure_default_organization(store)
    caplog.set_level(logging.DEBUG)
    path = await ensure_admin_key(store, config_of(tmp_path / "data"))
    assert path is not None and path.name == FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    value = path.read_text().strip()
    assert is_key(value)
    async with store.reading() as session:
        grant = await find_grant(session, lookup_of(value), store.now())
    assert grant is not None and grant.principal is not None and grant.principal.role is Role.ADMIN
    assert value not in caplog.text and value[15:] not in caplog.text
    assert any(str(getattr(record, "file", "")) == str(path) for record in caplog.records)


async def test_an_old_file_that_others_may_read_is_replaced_not_written_into(store: Store, tmp_path) -> None:
    await ensure_default_organization(store)
    (tmp_path / FILE).write_text("old")
    (tmp_path / FILE).chmod(0o644)
    await ensure_admin_key(store, config_of(tmp_path))
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


async def test_the_first_key_is_on_disk_before_it_is_in_the_database(store: Store, tmp_path, monkeypatch) -> None:
    await ensure_default_organization(store)
    steps = []

    def fsync(descriptor: int) -> None:
        found = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append((found.name, (tmp_path / FILE).exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    event.listen(store.engine.sync_engine, "commit", lambda _: steps.append(("commit", True)))
    await ensure_admin_key(store, config_of(tmp_path))
    assert steps == [(f"{FILE}.new", False), (tmp_path.name, True), ("commit", True)]


async def test_gateways_that_start_together_make_one_key(store: Store, tmp_path) -> None:
    await ensure_default_organization(store)
    configs = [config_of(tmp_path / str(number)) for number in range(4)]
    made = await asyncio.gather(*[ensure_admin_key(store, config) for config in configs])
    assert len([path for path in made if path is not None]) == 1
    assert len(await keys_in(store)) == 1


async def test_a_file_that_cannot_be_written_leaves_no_key_behind(store: Store, tmp_path) -> None:
    await ensure_default_organization(store)
    (tmp_path / FILE).mkdir()
    (tmp_path / FILE / "in-the-way").touch()
    with pytest.raises(StoreError, match=f"cannot write .*{FILE}"):
        await ensure_admin_key(store, config_of(tmp_path))
    assert await keys_in(store) == []


@pytest.mark.parametrize("mode", ["open", "keys"])
async def test_a_new_database_gets_one_key_and_a_known_one_no_other(database_url: str, tmp_path, mode) -> None:
    config = config_of(tmp_path, database_url, mode=mode)
    for _ in range(2):
        services = Services(config)
        await services.start()
        assert len(await keys_in(services.store)) == 1
        await services.stop()


async def test_a_server_that_asks_for_keys_makes_one_where_the_last_is_gone(database_url: str, tmp_path) -> None:
    counts = []
    for mode in ("open", "open", "keys"):
        services = Services(config_of(tmp_path, database_url, mode=mode))
        await services.start()
        keys = await keys_in(services.store)
        counts.append(len([key for key in keys if key.revoked_at is None]))
        async with audited_change(services.store, Actor("test")) as change:
            for key in keys:
                (await change.session.get_one(ApiKey, key.id)).revoked_at = change.now
        await services.stop()
    assert counts == [1, 0, 1]


async def test_without_a_place_for_its_key_a_server_that_asks_for_keys_does_not_start(database_url, tmp_path) -> None:
    (tmp_path / "data" / FILE / "in-the-way").mkdir(parents=True)
    asking = Services(config_of(tmp_path / "data", database_url, mode="keys"))
    with pytest.raises(StoreError, match="cannot write the administrator"):
        await asking.start()
    await asking.stop()
    open_one = Services(config_of(tmp_path / "data", database_url, mode="open"))
    await open_one.start()
    await open_one.stop()


@pytest.mark.parametrize(
    ("host", "wanted", "mode"),
    [
        ("127.0.0.1", "auto", "open"),
        ("127.9.9.9", "auto", "open"),
        ("::1", "auto", "open"),
        ("localhost", "open", "open"),
        ("127.0.0.1", "keys", "keys"),
        ("0.0.0.0", "auto", "keys"),
        ("::", "auto", "keys"),
        ("", "auto", "keys"),
        ("192.168.1.2", "auto", "keys"),
        ("gpu-7.example.org", "auto", "keys"),
    ],
)
def test_only_an_address_of_this_machine_alone_is_open(host: str, wanted: str, mode: str) -> None:
    config = KvarnConfig.model_validate({"gateway": {"host": host}, "auth": {"mode": wanted}})
    assert auth_mode(config) == mode


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gpu-7.example.org"])
def test_open_to_other_machines_is_refused(host: str) -> None:
    config = KvarnConfig.model_validate({"gateway": {"host": host}, "auth": {"mode": "open"}})
    with pytest.raises(ConfigError, match="anybody could administer"):
        Services(config)
