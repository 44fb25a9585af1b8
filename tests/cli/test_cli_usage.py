"""`kvarn usage` and `kvarn meter`, as an operator runs them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from sqlalchemy import func, make_url, select

from deployed_server import wait_for
from kvarn.cli.administration.usage import money
from kvarn.metering.kafka import encode_message
from kvarn.store.engine import Store
from kvarn.store.migrate import upgrade
from kvarn.store.models import BilledHour
from kvarn.store.repositories.usage import events as usage_events
from sample_usage import make_event

ENTRY = "from kvarn.cli.main import main; main()"


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[..., Path]:
    """A configuration file whose database has some usage."""

    def make(**metering: Any) -> Path:
        path = tmp_path / "kvarn.yaml"
        path.write_text(yaml.safe_dump({"store": {"url": f"sqlite:///{tmp_path}/kvarn.db"}, "metering": metering}))
        asyncio.run(_fill(tmp_path))
        return path

    return make


async def _fill(directory: Path) -> None:
    store = store_in(directory)
    await upgrade(store)
    events = [
        make_event(1, cost=1_234_567_890),
        make_event(2, organization_id="org-b", model="other"),
        make_event(3, finished_at=1_790_003_600, key_id="key_1", cached_tokens=0, batch_id="batch_1"),
    ]
    await usage_events.record(store, events)
    await store.close()


def store_in(directory: Path) -> Store:
    return Store(make_url(f"sqlite+aiosqlite:///{directory}/kvarn.db"))


def test_usage_is_shown_by_what_was_asked(ledger: Any, kvarn: Any) -> None:
    config = str(ledger())
    shown = kvarn("usage", "-c", config, "--by", "tenant,hour,key", "--since", "2026-09-01", "--json")
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert rows[0] == {
        "tenant": "org-a",
        "hour": "2026-09-21T14:00Z",
        "key": None,
        "requests": 1,
        "input_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 5,
        "cost": "1.23456789",
        "currency": "usd",
    }
    assert [(row["tenant"], row["key"]) for row in rows[1:]] == [("org-b", None), ("org-a", "key_1")]
    table = kvarn("usage", "-c", config, "--since", "2026-09-01", "--tenant", "org-b").stdout
    assert "org-b" in table and "other" in table and "org-a" not in table
    nothing = kvarn("usage", "-c", config, "--since", "2026-01-01", "--until", "2026-01-02")
    assert nothing.stdout == "no usage in this time\n"


def test_what_a_batch_used_is_shown_apart(ledger: Any, kvarn: Any) -> None:
    asked = ("usage", "-c", str(ledger()), "--since", "2026-09-01", "--json")
    shown = kvarn(*asked, "--by", "batch,tenant").stdout
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [(row["batch"], row["tenant"], row["requests"]) for row in rows] == [
        (None, "org-a", 1),
        (None, "org-b", 1),
        ("batch_1", "org-a", 1),
    ]
    (row,) = [json.loads(line) for line in kvarn(*asked, "--batch", "batch_1", "--by", "key").stdout.splitlines()]
    assert (row["key"], row["requests"], row["input_tokens"]) == ("key_1", 1, 10)


def test_of_a_batch_all_time_is_looked_at_unless_a_time_is_given(ledger: Any, kvarn: Any) -> None:
    usage = ("usage", "-c", str(ledger()))
    shown = kvarn(*usage, "--batch", "batch_1", "--by", "hour", "--json")
    assert json.loads(shown.stdout)["hour"] == "2026-09-21T15:00Z"
    later = kvarn(*usage, "--batch", "batch_1", "--since", "2026-10-01")
    assert (later.returncode, later.stdout) == (0, "no usage in this time\n")
    unknown = kvarn(*usage, "--batch", "batch_2")
    assert unknown.returncode == 1 and "no batch 'batch_2'" in unknown.stderr and not unknown.stdout


def test_options_that_cannot_be_used_are_told(ledger: Any, kvarn: Any) -> None:
    config = str(ledger())
    for wrong, told in ((["--by", "hour,day"], "at most one"), (["--since", "soon"], "2026-11-01")):
        refused = kvarn("usage", "-c", config, *wrong)
        assert refused.returncode == 2 and told in refused.stderr and "Traceback" not in refused.stderr
    refused = kvarn("meter", "-c", config)
    assert refused.returncode == 2 and "--from-ledger" in refused.stderr


def test_hours_are_built_from_the_ledger(ledger: Any, kvarn: Any) -> None:
    config = str(ledger())
    assert kvarn("meter", "-c", config, "--from-ledger").stdout == "3 usage events counted\n"
    assert kvarn("meter", "-c", config, "--from-ledger").stdout == "0 usage events counted\n"


def test_money_is_exact() -> None:
    assert [money(cost) for cost in (0, 1, 1_500_000_000, 10**18 + 7)] == [
        "0",
        "0.000000001",
        "1.5",
        "1000000000.000000007",
    ]


def test_the_meter_counts_the_topic_shows_its_lag_and_stops_when_told(
    ledger: Any, tmp_path: Path, kafka_servers: str
) -> None:
    from confluent_kafka import Producer

    settings = {"session.timeout.ms": 6000, "allow.auto.create.topics": True}
    config = ledger(kafka={"bootstrap_servers": kafka_servers, "topic": "cli", "group": "cli", "settings": settings})
    producer = Producer({"bootstrap.servers": kafka_servers})
    for number in range(30):
        producer.produce("cli", encode_message(make_event(number)), f"use_{number}")
    assert producer.flush(20) == 0
    command = [sys.executable, "-c", ENTRY, "meter", "-c", str(config), "--metrics-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "url=" in line)
        url = re.search(r"http://\S+", line)
        assert url is not None
        try:
            for metric in ("kvarn_meter_billed_total 30.0", "kvarn_meter_lag_messages 0.0"):
                wait_for(lambda metric=metric: metric in httpx.get(url[0].rstrip('"')).text)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert asyncio.run(_requests(tmp_path)) == 30


async def _requests(directory: Path) -> int:
    store = store_in(directory)
    async with store.reading() as session:
        found = await session.scalar(select(func.sum(BilledHour.requests)))
    await store.close()
    return int(found or 0)
