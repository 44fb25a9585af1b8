"""Data of the models' page: replicas, adapters and golden prompts, as far as the viewer may see them."""

from __future__ import annotations

from asking import CHAT, chat
from gateway_fixtures import wait_for
from kvarn.store.owner import Role

MODELS = "/console/api/models"


def test_models_with_their_replicas(client) -> None:
    assert client.post(CHAT, json=chat()).status_code == 200
    models = {each["name"]: each for each in client.get(MODELS).json()["models"]}
    tiny = models["tiny"]
    assert tiny["ready"] and tiny["state"] == "ready" and tiny["kind"] == "generate"
    of_version = {"limit": 1, "version": tiny["fingerprint"] or "none"}
    wait_for(
        lambda: client.get("/console/api/requests", params=of_version).json()["data"], "a kept request of the version"
    )
    (replica,) = tiny["replicas"]
    assert replica["state"] == "ready" and replica["stage"] is None and replica["starts"] == 1
    assert 0 < replica["kv_blocks_free"] <= replica["kv_blocks"] and replica["version"] == tiny["version"] == 0
    assert replica["fingerprint"] == tiny["fingerprint"]
    assert tiny["rollout"] is None


def test_a_member_sees_the_models_in_the_scope_of_their_key(server, client) -> None:
    names = {each["id"] for each in client.get("/v1/models").json()["data"]}
    member = server.add_tenant("acme-models", role=Role.MEMBER)
    shown = member.get(MODELS).json()["models"]
    assert shown and {each["name"] for each in shown} <= names
    assert all(each["rollout"] is None for each in shown)


def test_a_stream_begins_with_all(client) -> None:
    with client.stream("GET", f"{MODELS}/stream") as response:
        lines = response.iter_lines()
        assert next(lines) == "event: models"
        assert '"name":"tiny"' in next(lines)
