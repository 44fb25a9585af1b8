"""Recent requests of a model, simulated with other settings, for administrators of the platform."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from asking import CHAT, chat
from gateway_fixtures import wait_for
from kvarn.clock.virtual import VirtualClock
from kvarn.costs.replica_model import ReplicaModel
from kvarn.costs.step_times import StepTimes
from kvarn.gateway.what_if import WhatIfRuns, Window
from kvarn.store.owner import Role
from kvarn.wire.what_if import Changes, Progress, RecordedRequest, Simulated, WhatIf

URL = "/console/api/what-if"
TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-5, decode_row_s=1e-4)


@pytest.fixture
def measured(server: Any) -> Iterator[Any]:
    """The server with engines that know their step times."""
    before, server.chat.stats = server.chat.stats, msgspec.structs.replace(server.chat.stats, step_times=TIMES)
    yield server
    server.chat.stats = before


def events(client: httpx.Client, **query: Any) -> dict[str, Any]:
    """The last event of each kind."""
    answer = client.get(f"{URL}/run", params={"model": "tiny", "range": "1h"} | query)
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.splitlines() if line.startswith(("event: ", "data: "))]
    names, data = lines[::2], lines[1::2]
    return {name[7:]: json.loads(each[6:]) for name, each in zip(names, data, strict=True)}


def test_models_are_listed_with_how_they_are_served(measured: Any, client: httpx.Client) -> None:
    told = client.get(URL).json()
    tiny = next(each for each in told["models"] if each["name"] == "tiny")
    assert tiny["measured"] and tiny["replicas"] == 1 and tiny["token_budget"] > 0
    assert "h100" in told["devices"]


def test_recent_requests_are_simulated_and_a_link_finds_its_answer_again(measured: Any, client: httpx.Client) -> None:
    def ledger() -> int:
        return int(client.get("/console/api/usage", params={"model": "tiny"}).json()["buckets"][-1]["requests"])

    before = ledger()
    assert client.post(CHAT, json=chat()).status_code == 200
    wait_for(lambda: ledger() > before, "usage in the ledger")
    until = int(measured.gateway.store.now()) + 2
    told = events(client, until=until, replicas=2)
    found = told["simulated"]
    assert found["settings"] == ["models.0.replicas=2"]
    assert told["window"]["requests"] == found["before"]["requests"] == found["measured"]["requests"] >= 1
    assert (
        found["after"]["answered"] + found["after"]["refused"] + found["after"]["failed"] == found["after"]["requests"]
    )
    assert "progress" in told
    again = events(client, until=until, replicas=2)
    assert again["simulated"] == found and "progress" not in again, "it was kept"


def test_what_cannot_be_simulated_is_told(measured: Any, client: httpx.Client) -> None:
    assert client.get(f"{URL}/run").json()["error"]["param"] == "model"
    assert (
        client.get(f"{URL}/run", params={"model": "tiny", "range": "1h", "until": 5}).json()["error"]["param"]
        == "range"
    )
    assert client.get(f"{URL}/run", params={"model": "tiny", "replicas": 0}).status_code == 400
    assert client.get(f"{URL}/run", params={"model": "no-such"}).status_code == 404
    measured.chat.stats = msgspec.structs.replace(measured.chat.stats, step_times=None)
    answer = client.get(f"{URL}/run", params={"model": "tiny"})
    assert answer.status_code == 400 and "not measured their steps" in answer.json()["error"]["message"]


def test_only_administrators_of_the_platform_may_ask(measured: Any) -> None:
    for role in (Role.ADMIN, Role.MEMBER):
        with measured.add_tenant(f"what-if-{role}", role=role) as other:
            assert other.get(URL).status_code == 403
            assert other.get(f"{URL}/run", params={"model": "tiny"}).status_code == 403


def question(count: int, **changes: Any) -> WhatIf:
    requests = [
        RecordedRequest(at_s=number * 0.01, input_tokens=100, cached_tokens=0, output_tokens=20, project=0)
        for number in range(count)
    ]
    return WhatIf(
        config={"models": [{"name": "m", "path": "m"}]},
        checkpoint=None,
        kv_cache_dtype="bfloat16",
        quantization="",
        read_bytes_per_s=0.0,
        replica=ReplicaModel(step_times=TIMES, kv_blocks=1000, block_bytes=0, max_context_length=4096),
        requests=requests,
        duration_s=max(1.0, count * 0.01),
        changes=Changes(**changes),
    )


WINDOW = Window(start=0.0, end=1.0, requests=1, newest_only=False)


async def test_who_stops_listening_ends_the_simulation() -> None:
    runs = WhatIfRuns()
    run = runs.run("a", "q", WINDOW, question(20_000))
    assert isinstance(await anext(run), Progress)
    following = asyncio.create_task(anext(run))  # it runs, and is waited for
    for _ in range(10):
        await asyncio.sleep(0)
    assert runs.running
    following.cancel()
    await asyncio.wait([following])
    await run.aclose()
    assert not runs.running and runs.find("q") is None
    assert [type(each) async for each in runs.run("a", "q", WINDOW, question(2))][-1] is Simulated, "its place is free"
    await runs.close()


async def test_answers_are_kept_for_an_hour() -> None:
    clock = VirtualClock()
    runs = WhatIfRuns(clock)
    answer = [each async for each in runs.run("a", "q", WINDOW, question(2))][-1]
    assert runs.find("q") == (WINDOW, answer) and runs.find("other") is None
    clock.move_to(3601.0)
    assert runs.find("q") is None
    await runs.close()
