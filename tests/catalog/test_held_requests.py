"""Requests that reach a gateway before it has taken over the engines of another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fake_replica import EMBED_CARD, GENERATE_CARD, FakeReplica
from gateway_fixtures import make_server, running, wait_for
from kept_rows import traced
from kvarn.answers.record import RequestRecord
from kvarn.catalog.models import ServedModel
from kvarn.config.fleet import FleetConfig
from kvarn.config.replica import FailoverConfig
from kvarn.gateway import middleware
from kvarn.kept.packing import Kept, pack, unpack
from kvarn.replica.client.protocol import ReplicaState
from kvarn.wire.messages import ModelCard

COMPLETION = ("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 2})
EMBEDDING = ("/v1/embeddings", {"model": "vec", "input": "x"})


def standby(checkpoint: Path, launcher: str, max_wait_s: float) -> Any:
    """A gateway whose models have no replicas."""
    server = make_server(checkpoint, drain_timeout_s=1)
    server.config = server.config.model_copy(update={"fleet": FleetConfig.model_validate({"launcher": launcher})})
    for name, served in server.served.items():
        config = served.config.model_copy(update={"failover": FailoverConfig(max_wait_s=max_wait_s)})
        server.served[name] = ServedModel(name, config, [], served.directory)
    return server


@pytest.mark.parametrize(("path", "body", "card"), [(*COMPLETION, GENERATE_CARD), (*EMBEDDING, EMBED_CARD)])
def test_a_request_through_a_gateway_that_stands_by_waits_for_the_takeover(
    checkpoint: Path, path: str, body: dict[str, Any], card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[RequestRecord] = []
    new_record = middleware.new_record
    monkeypatch.setattr(middleware, "new_record", lambda scope: records.append(new_record(scope)) or records[-1])
    server = standby(checkpoint, "ray", 60.0)
    replicas = server.served[body["model"]].replicas
    with running(server, wait_ready=False), server.client() as client, ThreadPoolExecutor(1) as pool:
        assert client.get("/ready").status_code == 503
        answer = pool.submit(client.post, path, json=body, timeout=60)
        held = f'kvarn_held_requests{{model="{body["model"]}"}} '
        wait_for(lambda: held + "1.0" in client.get("/metrics").text, "the request to wait")
        replica = FakeReplica(card, state=ReplicaState.STARTING)

        async def take_over(state: ReplicaState) -> None:
            if not replicas:
                replicas.add("taken over", replica)
            replica.state = state
            replica.on_changed()

        server.do(take_over(ReplicaState.STARTING))
        assert held + "1.0" in client.get("/metrics").text
        server.do(take_over(ReplicaState.READY))
        assert answer.result(60).status_code == 200
        assert held + "0.0" in client.get("/metrics").text
    (record,) = (each for each in records if each.endpoint == path)
    opened = unpack(pack(Kept(request=traced(events=record.timeline.events)))).request
    assert [dict(event.numbers) for event in opened.events if event.name == "held"] == [{"cold": 0}]


@pytest.mark.parametrize(("launcher", "max_wait_s"), [("ray", 0.1), ("local", 60.0)])
def test_it_is_refused_in_the_end_and_at_once_where_no_takeover_can_come(
    checkpoint: Path, launcher: str, max_wait_s: float
) -> None:
    with running(standby(checkpoint, launcher, max_wait_s), wait_ready=False) as server, server.client() as client:
        answer = client.post(COMPLETION[0], json=COMPLETION[1])
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_ready")
        assert "retry-after" in answer.headers
