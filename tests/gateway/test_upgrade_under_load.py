"""A newer release upgrades the database of running gateways: no request fails, and gateways of this release start."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from gateway_fixtures import wait_for
from kvarn.store import migrate

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "store": True}
NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9998"
down_revision = "{newest}"


def upgrade():
    for table in ("usage_events", "api_keys", "stored_completions", "organizations"):
        op.add_column(table, sa.Column("of_next", sa.String(64), nullable=False, server_default=""))
    op.create_table("things_of_next", sa.Column("id", sa.String(64), primary_key=True))


def downgrade():
    for table in ("usage_events", "api_keys", "stored_completions", "organizations"):
        op.drop_column(table, "of_next")
    op.drop_table("things_of_next")
"""


class Clients:
    """Ask one request after the other."""

    def __init__(self, *clients: httpx.Client) -> None:
        self.statuses: list[int] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(client,)) for client in clients]
        for thread in self._threads:
            thread.start()

    def _ask(self, client: httpx.Client) -> None:
        while not self._stopping.is_set():
            self.statuses.append(client.post("/v1/chat/completions", json=ASK).status_code)

    def go_on(self) -> None:
        wanted = len(self.statuses) + 8
        wait_for(lambda: len(self.statuses) >= wanted, "more answers")

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)


@contextmanager
def next_release(folder: Path) -> Iterator[None]:
    """This code is the release after this one."""
    newest = migrate.head()
    shutil.copytree(migrate._MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9998_next.py").write_text(NEXT.format(newest=newest))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "_MIGRATIONS", folder)
        patch.setattr(migrate, "COMPATIBLE_SINCE", newest)
        yield


def test_requests_go_on_while_a_newer_release_upgrades_and_takes_back(serve_stored: Any, tmp_path: Path) -> None:
    def schema(server: Any) -> migrate.SchemaState:
        state: migrate.SchemaState = server.do(migrate.read_state(server.gateway.store))
        return state

    async def events(server: Any) -> int:
        async with server.gateway.store.reading() as session:
            return int(await session.scalar(text("SELECT count(*) FROM usage_events")) or 0)

    newest = migrate.head()
    with serve_stored() as running:
        clients = Clients(running.add_tenant("red"), running.add_tenant("blue"))
        try:
            clients.go_on()
            with next_release(tmp_path / "migrations"):
                running.do(migrate.upgrade(running.gateway.store))
            assert schema(running) == migrate.SchemaState("9998", newest)
            clients.go_on()
            with serve_stored() as started, started.client() as probe:
                assert probe.get("/ready").json()["database"] == "up"
                assert started.add_tenant("green").post("/v1/chat/completions", json=ASK).status_code == 200
            with next_release(tmp_path / "again"):
                running.do(migrate.downgrade(running.gateway.store, newest))
            clients.go_on()
        finally:
            clients.stop()
        assert set(clients.statuses) == {200}
        answered = len(clients.statuses) + 1
        wait_for(lambda: running.do(events(running)) == answered, "each request on the ledger, once")
