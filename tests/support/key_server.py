"""Gateways that ask for keys, on a database of their own: fixtures for a `conftest.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest

from gateway_fixtures import wait_for
from kvarn.config.console import ConsoleConfig
from kvarn.config.platform import AuthConfig, StoreConfig
from kvarn.identity.bootstrap import FILE


class KeyServer:
    """A gateway that asks for keys, and its first administrator."""

    def __init__(self, server: Any, admin_key: str) -> None:
        self.server = server
        self.admin_key = admin_key
        self._clients: list[httpx.Client] = []

    def client(self, key: str | None) -> httpx.Client:
        """Somebody who presents this key."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        made = httpx.Client(base_url=self.server.url, timeout=20, headers=headers)
        self._clients.append(made)
        return made

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def open_api(serve: Callable[..., Any], tmp_path) -> Callable[..., AbstractContextManager[KeyServer]]:
    """`with open_api(url, mode="keys", refresh_s=0.1) as api`: a gateway on the database of that URL."""

    @contextmanager
    def make(
        url: str,
        name: str = "gateway",
        console: ConsoleConfig | None = None,
        gateway: dict[str, object] | None = None,
        **auth: Any,
    ) -> Iterator[KeyServer]:
        data = tmp_path / name
        changes = {
            "auth": AuthConfig(**{"mode": "keys", **auth}),
            "store": StoreConfig(url=url, timeout_s=20),
            "data_dir": str(data),
            "console": console or ConsoleConfig(),
        }

        def prepare(server: Any) -> None:
            server.config = server.config.model_copy(update=changes)
            server.authenticator = None

        with serve(prepare, **(gateway or {})) as server, httpx.Client(base_url=server.url) as probe:
            wait_for(lambda: probe.get("/ready").status_code == 200, "the gateway to be ready")
            file = data / FILE
            api = KeyServer(server, file.read_text().strip() if file.exists() else "")
            yield api
            api.close()

    return make


@pytest.fixture
def api(open_api: Callable[..., AbstractContextManager[KeyServer]], database_url: str) -> Iterator[KeyServer]:
    """A gateway that asks for keys, once on SQLite, once on PostgreSQL."""
    with open_api(database_url) as made:
        yield made
