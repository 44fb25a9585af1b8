"""Several replicas of one model behind its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fake_replica import GENERATE_CARD, FakeReplica
from gateway_fixtures import make_server, running
from kvarn.catalog.models import ServedModel
from kvarn.config.platform import AdmissionConfig, SloConfig
from kvarn.costs.step_times import StepTimes
from kvarn.replica.client.protocol import ReplicaState
from kvarn.wire.messages import EngineStats

TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=0, decode_row_s=1e-3, decode_token_s=0)


@pytest.fixture
def pair(checkpoint: Path) -> Iterator[Any]:
    """A server whose model `tiny` has two replicas."""
    server = make_server(checkpoint, drain_timeout_s=1)
    old, second = server.served["tiny"], FakeReplica(GENERATE_CARD)
    changes = {"admission": AdmissionConfig(load_shedding=True), "slo": SloConfig(ttft_target_s=1.0)}
    server.config = server.config.model_copy(update=changes)
    server.served["tiny"] = ServedModel("tiny", old.config, [server.chat, second], old.directory)
    with running(server), server.client() as client:
        yield client, server.chat, second


def ask(client: Any, count: int) -> list[int]:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
    return [client.post("/v1/completions", json=body).status_code for _ in range(count)]


def test_a_replica_that_is_down_gets_no_request_and_the_model_stays_ready(pair: Any) -> None:
    client, first, second = pair
    first.state = ReplicaState.DOWN
    assert client.get("/ready").status_code == 200
    assert ask(client, 4) == [200] * 4
    assert (len(first.submitted), len(second.submitted)) == (0, 4)
    second.state = ReplicaState.DOWN
    assert client.get("/ready").status_code == 503
    assert ask(client, 1) == [503]
    first.state = ReplicaState.READY
    assert ask(client, 2) == [200] * 2
    assert (len(first.submitted), len(second.submitted)) == (2, 4)


def test_health_metrics_and_capacity_name_both(pair: Any) -> None:
    client, first, second = pair
    first.state = ReplicaState.STARTING
    first.stats = EngineStats(running=3, kv_blocks_total=64, kv_blocks_free=10)
    second.stats = EngineStats(running=1, kv_blocks_total=64, kv_blocks_free=64)
    states = client.get("/ready").json()["models"]["tiny"]["replicas"]
    assert sorted((name.rpartition("/")[2], state) for name, state in states.items()) == [
        ("0", "starting"),
        ("1", "ready"),
    ]
    page = client.get("/metrics").text
    for name, state in states.items():
        assert f'kvarn_replica_up{{model="tiny",replica="{name}"}} {float(state == "ready")}' in page
    running = [line for line in page.splitlines() if line.startswith('kvarn_running_requests{model="tiny"')]
    assert sorted(line.split()[-1] for line in running) == ["1.0", "3.0"]
    capacity = client.get("/v1/models/tiny").json()["capacity"]
    assert (capacity["running"], capacity["kv_blocks_free"]) == (4, 74)


def test_a_request_is_refused_only_where_every_replica_would_refuse_it(pair: Any) -> None:
    client, first, second = pair
    busy, idle = (
        EngineStats(step_times=TIMES, step_s=0.01, running=1, prefill_tokens=tokens) for tokens in (12_000, 0)
    )
    first.stats, second.stats = busy, idle
    assert ask(client, 4) == [200] * 4
    assert (len(first.submitted), len(second.submitted)) == (0, 4)
    first.stats, second.stats = busy, replace(busy)
    assert ask(client, 2) == [503] * 2
    first.stats, second.stats = replace(idle), busy
    assert ask(client, 2) == [200] * 2
    assert (len(first.submitted), len(second.submitted)) == (2, 4)
