"""A gateway whose database answers and takes no writes: answers are given, usage waits on disk, and what has to be
written is refused; once writes go again all is as before, by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from asking import metric
from kvarn.config.platform import AuthConfig, StoreConfig
from kvarn.config.schema import KvarnConfig
from kvarn.gateway.services import Services
from kvarn.identity.bootstrap import FILE
from kvarn.store.models import UsageEvent
from read_only import SqliteSwitch, set_postgres_read_only

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


class Setup:
    """A gateway that asks for keys, its administrator, and a switch for its database."""

    def __init__(self, server: Any, admin: httpx.Client, url: str) -> None:
        self.server, self.admin, self.url = server, admin, url
        self._file = SqliteSwitch(server.gateway.store) if url.startswith("sqlite") else None

    def set_read_only(self, read_only: bool) -> None:
        if self._file is not None:
            self._file.is_on = read_only
        else:
            asyncio.run(set_postgres_read_only(self.url, read_only))

    def chat(self) -> str:
        answer = self.admin.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200, answer.text
        return str(answer.headers["x-request-id"])

    def metric(self, name: str) -> float:
        return metric(self.admin, name)

    def written(self) -> list[str]:
        async def read() -> list[str]:
            async with self.server.gateway.store.reading() as session:
                return list(await session.scalars(select(UsageEvent.request_id).order_by(UsageEvent.started_at)))

        found: list[str] = self.server.do(read())
        return found


@pytest.fixture(params=["sqlite", "postgresql"])
def setup(request: Any, tmp_path: Path, serve: Any, make_database: Callable[[int], str]) -> Iterator[Setup]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/kvarn.db"
    else:
        url = make_database(request.getfixturevalue("own_postgres").port)

    def prepare(server: Any) -> None:
        server.authenticator = None

    config = {"auth": AuthConfig(mode="keys"), "store": StoreConfig(url=url), "data_dir": str(tmp_path / "data")}
    with serve(prepare, config=config) as server:
        key = (tmp_path / "data" / FILE).read_text().strip()
        with server.client(key) as admin:
            yield Setup(server, admin, url)


def test_answers_go_on_usage_waits_and_what_must_be_written_is_refused_until_writes_go_again(setup, wait_for, caplog):
    caplog.set_level(logging.INFO, "kvarn")
    asked = [setup.chat()]
    wait_for(lambda: setup.written() == asked, "the first event")
    assert setup.admin.get("/ready").json()["database"] == "up" and setup.metric("kvarn_store_read_only") == 0

    setup.set_read_only(True)
    asked += [setup.chat() for _ in range(5)]
    wait_for(lambda: setup.admin.get("/ready").json()["database"] == "read_only", "the gateway to know")
    assert setup.admin.get("/ready").status_code == 200, "it answers without"
    assert setup.metric("kvarn_store_read_only") == 1 and setup.metric("kvarn_store_away") == 0
    for method, path, body in (
        ("POST", "/v1/conversations", {"json": {}}),
        ("POST", "/v1/files", {"data": {"purpose": "user_data"}, "files": {"file": ("a", b"a")}}),
        ("POST", "/v1/organization/projects", {"json": {"name": "p"}}),
        ("POST", "/v1/responses", {"json": {"model": "tiny", "input": "hello", "background": True}}),
    ):
        refusal = setup.admin.request(method, path, **body)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "database_read_only"), refusal.text
        assert int(refusal.headers["retry-after"]) >= 1
    kept = setup.admin.post("/v1/responses", json={"model": "tiny", "input": "hello"})
    assert kept.status_code == 200 and kept.json()["store"] is False, "an answer is an answer, and says what it is not"
    asked.append(kept.headers["x-request-id"])
    assert setup.admin.get("/v1/files").json()["data"] == [], "what is stored is read"
    wait_for(lambda: setup.metric("kvarn_usage_spool_bytes") > 0, "usage to wait on disk")
    assert setup.written() == asked[:1]

    setup.set_read_only(False)
    wait_for(lambda: setup.admin.get("/ready").json()["database"] == "up", "the gateway to know")
    asked.append(setup.chat())
    wait_for(lambda: len(setup.written()) >= len(asked), "usage to be written")
    assert setup.written() == asked, "each once, and nothing of what was refused"
    assert setup.admin.post("/v1/conversations", json={}).status_code == 200
    assert setup.metric("kvarn_store_read_only") == setup.metric("kvarn_usage_spool_bytes") == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_gateway_nobody_uses_learns_by_itself_that_writes_go_again(setup, wait_for):
    setup.set_read_only(True)
    assert setup.admin.post("/v1/conversations", json={}).status_code == 503
    assert setup.admin.get("/ready").json()["database"] == "read_only"
    setup.set_read_only(False)
    wait_for(lambda: setup.metric("kvarn_store_read_only") == 0, "the gateway to ask")


async def test_a_gateway_starts_on_a_database_that_takes_no_writes(own_postgres, make_database, tmp_path):
    url = make_database(own_postgres.port)
    settings = {"auth": {"mode": "keys"}, "store": {"url": url}, "data_dir": str(tmp_path)}
    config = KvarnConfig.model_validate(settings)
    for read_only in (False, True):
        await set_postgres_read_only(url, read_only)
        services = Services(config)
        await services.start()
        assert services.metering._writing.running, "all of it runs: its schema and an administrator's key are there"
        key = (tmp_path / FILE).read_text().strip()
        assert await services.identity.key_cache.bearer_of(key) is not None
        await services.stop()
