"""The first key, without which a server that asks for keys could not be used."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from kvarn.config.schema import KvarnConfig
from kvarn.store.directories import data_dir, sync_directory
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.ids import DEFAULT_ORGANIZATION, DEFAULT_PROJECT
from kvarn.store.owner import Role
from kvarn.store.repositories.tenants.administrators import has_admin_key
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key

FILE = "bootstrap-admin-key"

_log = logging.getLogger("kvarn.identity")


async def ensure_admin_key(store: Store, config: KvarnConfig) -> Path | None:
    """Make an administrator's key where no valid one exists; its file. The key is shown once: in a file of `data_dir`
    that only this user can read, never in a log. One of several gateways that start at once makes it. Raises
    `StoreError`."""
    async with store.reading() as session:  # most often there is one, and nothing need be written to know it
        if await has_admin_key(session, DEFAULT_ORGANIZATION, int(store.now())):
            return None
    async with audited_change(store, Actor("server (first start)")) as change:
        if await has_admin_key(change.session, DEFAULT_ORGANIZATION, change.now):
            return None
        asked = KeyRequest(name="Bootstrap admin key", role=Role.ADMIN)
        _, value = await add_key(change, DEFAULT_ORGANIZATION, DEFAULT_PROJECT, asked)
        # A key that is used before the commit is cached as unknown only until then.
        change.changed.add(DEFAULT_ORGANIZATION)
        # On disk before the commit: a key in the database that nobody knows would keep the next start from making one.
        path = _write(config, value)
    _log.warning("created an administrator's key: read it from the file, then delete the file", extra={"file": path})
    return path


def _write(config: KvarnConfig, value: str) -> Path:
    path = data_dir(config) / FILE
    new = path.with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(value + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise StoreError(f"cannot write the administrator's key to {path}: {error.strerror}; see data_dir") from None
    return path
