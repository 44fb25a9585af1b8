"""Models on spot capacity for the batch tier: who is answered by them, and what their absence changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_replica import answer_text
from foreign_server import foreign_gateway
from kvarn.answers.record import Deferred, RequestRecord
from kvarn.replica.client.protocol import ReplicaState

CHAT = "/v1/chat/completions"
CONFIG = {
    "models": [
        {"name": "steady", "path": "steady"},
        {"name": "cheap", "path": "cheap", "spot": "batch"},
        {"name": "open", "path": "open", "spot": "any"},
    ],
    "routes": [{"name": "chat", "targets": [{"model": "steady"}], "rules": [{"model": "cheap", "batch": True}]}],
}


@pytest.fixture
def gateway(checkpoint: Path, tmp_path: Path) -> Iterator[Any]:
    with foreign_gateway(CONFIG, checkpoint, tmp_path) as made:
        for name, model in made.served.items():
            (replica,) = model.replicas.values()
            replica.answer = lambda request, index, name=name: answer_text(f"from {name}")
        with made.client() as client:
            made.http = client
            yield made


def body(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}


def test_only_the_batch_tier_is_answered_by_spot_capacity_that_is_for_it(gateway: Any) -> None:
    refused = gateway.http.post(CHAT, json=body("cheap"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "batch_tier_only")
    for path, asked in (
        ("/v1/completions", {"model": "cheap", "prompt": "hello"}),
        ("/v1/messages", body("cheap", max_tokens=5)),
        ("/v1/responses", {"model": "cheap", "input": "hello"}),
        (CHAT, body("cheap", service_tier="flex")),
    ):
        assert gateway.http.post(path, json=asked).status_code == 400, path
    assert "from cheap" in gateway.http.post(CHAT, json=body("cheap", priority=10)).text
    assert "from open" in gateway.http.post(CHAT, json=body("open")).text


def test_a_route_sends_the_batch_tier_to_spot_capacity(gateway: Any) -> None:
    assert "from steady" in gateway.http.post(CHAT, json=body("chat")).text
    assert "from cheap" in gateway.http.post(CHAT, json=body("chat", priority=10)).text


def test_a_server_is_ready_without_it_and_without_nothing_else(gateway: Any) -> None:
    for name, status in (("cheap", 200), ("open", 503)):
        (replica,) = gateway.served[name].replicas.values()
        replica.state = ReplicaState.DOWN
        assert gateway.http.get("/ready").status_code == status, name
    assert gateway.http.get("/ready", params={"models": "any"}).status_code == 200
    (replica,) = gateway.served["steady"].replicas.values()
    replica.state = ReplicaState.DOWN
    assert gateway.http.get("/ready", params={"models": "any"}).status_code == 503


def test_lines_of_batches_and_copies_are_of_the_batch_tier() -> None:
    assert RequestRecord("r", deferred=Deferred(10)).is_batch()
    assert not RequestRecord("r").is_batch() and RequestRecord("r").is_batch(10)
