"""What answers a model's clients while it is rolled out, after several rollouts, and where a version is not ready."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_replica import answer_text
from foreign_server import foreign_gateway
from kvarn.replica.client.protocol import ReplicaState

MODELS: list[dict[str, Any]] = [
    {"name": "chat", "path": "chat", "fallback": [{"model": "small"}]},
    *({"name": name, "path": name} for name in ("chat-2", "chat-3", "small")),
]


@pytest.fixture
def versions(checkpoint: Path, tmp_path: Path) -> Iterator[Any]:
    with foreign_gateway({"models": MODELS}, checkpoint, tmp_path) as gateway:
        for name, model in gateway.served.items():
            (replica,) = model.replicas.values()
            replica.answer = lambda request, index, name=name: answer_text(f"from {name}")
        with gateway.client() as client:
            gateway.http = client
            yield gateway


def answering(gateway: Any) -> str:
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
    model: str = gateway.http.post("/v1/chat/completions", json=body).json()["model"]
    return model


def begin(gateway: Any, candidate: str) -> dict[str, Any]:
    settings = {"golden_prompts": 0, "shadow_share": 0, "step_min_s": 3600}
    body = {"model": "chat", "candidate": candidate, "settings": settings}
    begun: dict[str, Any] = gateway.http.post("/v1/rollouts", json=body).raise_for_status().json()
    return begun


def command(gateway: Any, action: str, wait_for: Any) -> None:
    """Have it done by the process that judges, which may take a moment."""
    gateway.http.post("/v1/rollouts/chat", json={"action": action}).raise_for_status()
    phase = {"promote": "promoted", "rollback": "rolled_back"}[action]
    wait_for(lambda: gateway.http.get("/v1/rollouts/chat").json()["phase"] == phase, action)


def test_after_a_rollback_the_version_that_was_promoted_before_answers(versions: Any, wait_for: Any) -> None:
    begin(versions, "chat-2")
    command(versions, "rollback", wait_for)
    assert answering(versions) == "chat"
    begin(versions, "chat-2")
    command(versions, "promote", wait_for)
    assert answering(versions) == "chat-2"
    for _ in range(2):
        assert begin(versions, "chat-3")["stable"] == "chat-2"
        command(versions, "rollback", wait_for)
        assert answering(versions) == "chat-2"


def test_in_a_rollout_the_stable_version_keeps_its_own_fallbacks(versions: Any) -> None:
    begin(versions, "chat-2")
    assert answering(versions) == "chat"
    (replica,) = versions.served["chat"].replicas.values()
    replica.state = ReplicaState.DOWN
    assert answering(versions) == "small"
