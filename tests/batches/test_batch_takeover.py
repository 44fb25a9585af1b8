"""Gateways that die, or leave, in the middle of a batch: another goes on, and every request is answered once."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url, select

from batch_jobs import chat_line, send
from kvarn.batches.line import line_id
from kvarn.config.schema import KvarnConfig
from kvarn.store.engine import Store
from kvarn.store.models import BatchLine, UsageEvent
from ledger_kills import Gateway

LINES = 40
PATIENCE_S = 60.0


@dataclass
class BatchGateways:
    """Gateways on one database, one after another or together."""

    folder: Path
    checkpoint: Path
    database_url: str

    @property
    def log(self) -> Path:
        return self.folder / "engine.log"

    @contextmanager
    def gateway(self, name: str = "a") -> Iterator[tuple[Gateway, httpx.Client]]:
        config = {
            "gateway": {"port": 0, "drain_timeout_s": 1},
            "data_dir": str(self.folder / name),
            "models": [{"name": "tiny", "path": "tiny"}, {"name": "vec", "path": "vec"}],
            "store": {"url": self.database_url, "timeout_s": 20},
            "batches": {"poll_s": 0.1, "lease_s": 3, "max_in_flight": 4},
        }
        home = self.folder / f"{name}-home"
        home.mkdir(exist_ok=True)
        process = Gateway(KvarnConfig.model_validate(config), self.checkpoint, home, self.log)
        process.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{process.port}", timeout=20) as client:
                yield process, client
        finally:
            if process.port:
                process.end(signal.SIGTERM)
            process.close()

    def ran(self) -> list[str]:
        """What the engines were asked, one entry a request."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def read(self, statement: Any) -> list[Any]:
        """Rows of the database, read by nobody's gateway."""

        async def ask() -> list[Any]:
            url = make_url(self.database_url)
            driver = "sqlite+aiosqlite" if url.get_backend_name() == "sqlite" else "postgresql+asyncpg"
            store = Store(url.set(drivername=driver), timeout_s=20)
            async with store.reading() as session:
                rows = (await session.execute(statement)).all()
            await store.close()
            return list(rows)

        return asyncio.run(ask())

    def answered(self) -> set[str]:
        """Requests whose answers are kept."""
        found = self.read(select(BatchLine.custom_id).where(BatchLine.failed.is_not(None)))
        return {row[0] for row in found}


@pytest.fixture
def runner(tmp_path: Path, checkpoint: Path, database_url: str) -> BatchGateways:
    return BatchGateways(tmp_path, checkpoint, database_url)


def begin(client: httpx.Client) -> str:
    lines = [chat_line(number) for number in range(LINES)]
    for number, line in enumerate(lines):
        line["custom_id"] = line["body"]["messages"][0]["content"] = f"q{number}"
    return str(send(client, lines)["id"])


def wait_until(client: httpx.Client, batch_id: str, status: str = "completed", answers: int = 0) -> dict[str, Any]:
    """The batch, once so many of its lines are answered, or it has reached a state."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = client.get(f"/v1/batches/{batch_id}")
        batch: dict[str, Any] = answer.json()
        away = answer.status_code == 503
        if not away and (batch["status"] == status or 0 < answers <= batch["request_counts"]["completed"]):
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)


def check_outputs(client: httpx.Client, batch: dict[str, Any]) -> None:
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    output = client.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    assert [json.loads(line)["custom_id"] for line in output] == [f"q{number}" for number in range(LINES)]
    told = [json.loads(line)["response"]["body"]["usage"] for line in output]
    assert batch["usage"]["input_tokens"] == sum(usage["prompt_tokens"] for usage in told)
    assert batch["usage"]["output_tokens"] == sum(usage["completion_tokens"] for usage in told)
    assert "error_file_id" not in batch
    assert len(client.get("/v1/files", params={"purpose": "batch_output"}).json()["data"]) == 1


def test_a_batch_survives_gateways_that_are_killed(runner):
    kept: set[str] = set()
    batch_id = ""
    for _ in range(2):
        with runner.gateway() as (process, client):
            batch_id = batch_id or begin(client)
            wait_until(client, batch_id, answers=len(kept) + 8)
            process.end()
        kept = runner.answered()
        ran_before = Counter(runner.ran())
    with runner.gateway() as (_, client):
        check_outputs(client, wait_until(client, batch_id))
    ran = Counter(runner.ran())
    assert set(ran) == {f"q{number}" for number in range(LINES)}
    assert {name: ran[name] for name in kept} == {name: ran_before[name] for name in kept}  # none was run again
    names = {line_id(batch_id, number + 1): f"q{number}" for number in range(LINES)}
    events = runner.read(
        select(UsageEvent.request_id, UsageEvent.outcome, UsageEvent.service_tier, UsageEvent.batch_id)
    )
    finished = Counter(names[event[0]] for event in events if event[1] == "finished")
    assert set(finished) == set(ran) and {event[2:] for event in events} == {("batch", batch_id)}
    assert finished.total() <= ran.total()
    assert max(Counter(event[0] for event in events).values()) <= 3  # gateways: one may die before it asks an engine


@pytest.mark.thorough
def test_a_gateway_that_leaves_hands_its_batch_over_at_once(runner):
    with runner.gateway("b") as (_, other):
        with runner.gateway("a") as (_, client):
            batch_id = begin(client)
            wait_until(client, batch_id, answers=4)
        check_outputs(other, wait_until(other, batch_id))
    assert not runner.read(select(BatchLine.line))


@pytest.mark.thorough
def test_a_batch_survives_a_database_that_is_killed(tmp_path, checkpoint, own_postgres, make_database, wait_for):
    runner = BatchGateways(tmp_path, checkpoint, make_database(own_postgres.port))
    with runner.gateway() as (_, client):
        batch_id = begin(client)
        wait_until(client, batch_id, answers=8)
        own_postgres.kill()
        wait_for(lambda: client.get(f"/v1/batches/{batch_id}").status_code == 503, "the gateway to know")
        own_postgres.start()
        check_outputs(client, wait_until(client, batch_id))
