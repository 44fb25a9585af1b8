"""The gateway is killed in mid-stream, the database and the broker too: the ledger says what clients received, once.

`KVARN_TEST_KILLS=200` kills that often on each database; see docs/internals/measured_serving.md.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, make_url, select

from fake_replica import write_checkpoint
from gateway_process import TOKENS_PER_STEP
from kvarn.config.platform import KafkaConfig
from kvarn.config.schema import KvarnConfig
from kvarn.metering.meter import Meter
from kvarn.metering.metrics import MeterMetrics
from kvarn.store.engine import Store
from kvarn.store.models import BilledHour, UsageEvent
from kvarn.store.repositories.usage import outbox
from ledger_kills import Clients, Gateway, Told
from mock_kafka import MockKafka
from profiles import effort

KILLS = int(os.environ.get("KVARN_TEST_KILLS", effort(3, 30)))
"""On each database."""
MOST_CHUNKS = 200
"""Parts of streams that arrive between two kills; a kill comes at a random moment of that."""
IN_FLIGHT = 4 * TOKENS_PER_STEP
"""Tokens of a stream that were counted and had not reached a client when the gateway was killed, at most."""


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as cluster:
        yield cluster


def make_config(directory: Path, database_url: str, kafka: MockKafka) -> KvarnConfig:
    return KvarnConfig.model_validate(
        {
            "gateway": {"port": 0, "drain_timeout_s": 5},
            "data_dir": str(directory / "data"),
            "store": {"url": database_url},
            "metering": {
                "flush_interval_s": 0.02,
                "kafka": {"bootstrap_servers": kafka.servers, "topic": "kills", "group": "kills"},
                "prices": [{"model": "*", "input_per_million": 1.0, "output_per_million": 2.0}],
            },
            "models": [{"name": "tiny", "path": "tiny"}, {"name": "vec", "path": "vec"}],
            "log_level": "warning",
        }
    )


def open_store(database_url: str) -> Store:
    url = make_url(database_url)
    driver = "sqlite+aiosqlite" if url.get_backend_name() == "sqlite" else "postgresql+asyncpg"
    return Store(url.set(drivername=driver), timeout_s=20)


def compare(told: Sequence[Told], events: Sequence[UsageEvent]) -> Counter[str]:
    """Check each request's event against what its client knows; returns how many there were of each kind."""
    by_request = Counter(event.request_id for event in events)
    assert by_request == Counter(set(by_request)), "a request is on the ledger twice"
    ledger = {event.request_id: event for event in events}
    seen: Counter[str] = Counter()
    for each in told:
        event = ledger.pop(each.request_id, None)
        if each.usage is not None:
            assert event is not None, f"{each} is not on the ledger"
            assert event.input_tokens == each.usage["prompt_tokens"], each
            assert event.output_tokens == each.usage.get("completion_tokens", 0), each
            seen["complete"] += 1
        elif each.received:
            assert event is not None, f"{each} is not on the ledger"
            surplus = event.output_tokens - each.received
            assert 0 <= surplus <= IN_FLIGHT, (each, event.output_tokens)
            seen["cut"] += 1
        elif each.refused:
            assert event is None, each
    assert not ledger, f"on the ledger, but asked by nobody: {list(ledger)}"
    seen["lost"] = sum(event.outcome == "lost" for event in events)
    return seen


async def read_events(store: Store) -> list[UsageEvent]:
    async with store.reading() as session:
        return list((await session.scalars(select(UsageEvent))).all())


async def bill_all(store: Store, config: KafkaConfig) -> None:
    """Let the meter count what is in the topic, the broker having all of it."""
    settings = {"session.timeout.ms": 6000, "allow.auto.create.topics": True}
    meter = Meter(store, config.model_copy(update={"settings": settings}), MeterMetrics())
    running = asyncio.create_task(meter.run())
    events = await read_events(store)
    sums = select(func.sum(BilledHour.requests), func.sum(BilledHour.output_tokens), func.sum(BilledHour.cost))
    ledger = (len(events), sum(event.output_tokens for event in events), sum(event.cost for event in events))
    try:
        async with asyncio.timeout(60):
            while True:
                async with store.reading() as session:
                    billed = tuple(int(each or 0) for each in (await session.execute(sums)).one())
                if billed == ledger:
                    break
                assert not running.done() and billed[0] <= ledger[0], (billed, ledger)
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        async with store.reading() as session:
            assert tuple(int(each or 0) for each in (await session.execute(sums)).one()) == ledger
    finally:
        meter.stop()
        await running


async def settle(store: Store, config: KvarnConfig) -> list[UsageEvent]:
    """The ledger once everything is in the topic and counted there."""
    assert config.metering.kafka is not None
    events = await read_events(store)
    await bill_all(store, config.metering.kafka)
    await store.close()
    return events


async def published(store: Store) -> bool:
    try:
        return (await outbox.waiting(store))[0] == 0
    finally:
        await store.engine.dispose()


def wait_published(store: Store) -> None:
    deadline = time.monotonic() + 60
    while not asyncio.run(published(store)):
        assert time.monotonic() < deadline, "the outbox is not empty"
        time.sleep(0.1)


def run_and_compare(config: KvarnConfig, checkpoint: Path, home: Path, disturb: Any) -> Counter[str]:
    """Let clients work while `disturb(gateway, clients)` does its worst, then end the gateway well and compare."""
    gateway = Gateway(config, checkpoint, home)
    assert config.store.url is not None
    store = open_store(config.store.url)
    try:
        gateway.start()
        clients = Clients(gateway)
        with clients.running(6):
            disturb(gateway, clients)
        wait_published(store)
        gateway.end(signal.SIGTERM)
    finally:
        gateway.close()
    assert list((home / "data" / "usage").iterdir()) == []
    events = asyncio.run(settle(store, config))
    return compare(clients.told, events)


@pytest.mark.thorough
@pytest.mark.timeout(max(300, 6 * KILLS))
def test_a_gateway_killed_in_mid_stream_again_and_again(tmp_path: Path, database_url: str, kafka: MockKafka) -> None:
    draw = random.Random(KILLS)

    def kill(gateway: Gateway, clients: Clients) -> None:
        for _ in range(KILLS):
            clients.wait(draw.randrange(MOST_CHUNKS), 2.0)
            gateway.end()
            gateway.start()
        time.sleep(0.3)

    config = make_config(tmp_path, database_url, kafka)
    seen = run_and_compare(config, write_checkpoint(tmp_path / "tiny"), tmp_path, kill)
    assert seen["lost"] and seen["cut"] and seen["complete"]


@pytest.mark.timeout(max(300, 10 * KILLS))
def test_the_gateway_the_database_and_the_broker_die_in_turns(
    tmp_path: Path, own_postgres: Any, make_database: Any, kafka: MockKafka
) -> None:
    draw = random.Random(KILLS)

    def disturb(gateway: Gateway, clients: Clients) -> None:
        for turn in range(KILLS):
            clients.wait(draw.randrange(MOST_CHUNKS), 2.0)
            match turn % 3:
                case 0:
                    own_postgres.kill()
                    time.sleep(draw.uniform(0.1, 0.5))
                    if draw.random() < 0.5:  # the gateway dies while what it knows is on its disk only
                        gateway.end()
                        gateway.start()
                    own_postgres.start()
                case 1:
                    kafka.pause()
                    time.sleep(draw.uniform(0.1, 1.0))
                    gateway.end()
                    gateway.start()
                    kafka.resume()
                case _:
                    gateway.end()
                    gateway.start()
        time.sleep(0.5)

    config = make_config(tmp_path, make_database(own_postgres.port), kafka)
    seen = run_and_compare(config, write_checkpoint(tmp_path / "tiny"), tmp_path, disturb)
    assert seen["lost"] and seen["complete"]
