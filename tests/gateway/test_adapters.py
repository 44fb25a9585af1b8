"""Adapters over HTTP: names, who may see and use them, loading and unloading as vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from asking import code_of
from gateway_fixtures import GatewayServer
from kvarn.replica.client.protocol import AdapterChangeError
from kvarn.store.owner import Role, Scopes
from kvarn.text.checkpoint import packaged_adapter
from kvarn.wire.messages import AdapterInfo

ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture
def adapters(server: GatewayServer) -> dict[str, AdapterInfo]:
    """Of the model `tiny`: one for all, one that needs more than a name."""
    server.chat.adapters = {name: AdapterInfo(name=name, path=f"/loras/{name}", digest=name) for name in ("law", "a:b")}
    return server.chat.adapters


@pytest.fixture
def tenant(server: GatewayServer) -> Iterator[httpx.Client]:
    with server.add_tenant("adapters-tenant", role=Role.MEMBER) as client:
        yield client


@pytest.mark.parametrize("name", ["law", "tiny:law", "a:b", "tiny:a:b"])
def test_every_operation_takes_an_adapter_and_calls_it_by_its_name(client, server, adapters, name):
    own = name.removeprefix("tiny:")
    for path, body in (
        ("/v1/chat/completions", ASK),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 4}),
        ("/v1/responses", {"input": "hi", "store": False}),
        ("/v1/messages", ASK),
    ):
        answer = client.post(path, json={**body, "model": name})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == own
        assert server.chat.submitted[-1].adapter == own
    assert client.post("/v1/chat/completions", json={**ASK, "model": "tiny"}).json()["model"] == "tiny"
    assert server.chat.submitted[-1].adapter == ""
    assert client.post("/tokenize", json={"model": name, "prompt": "hi"}).json()["count"] > 0


def test_the_list_of_models_names_parent_and_root(client, adapters):
    listed = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert set(listed) == {"tiny", "vec", "law", "a:b"}
    assert (listed["law"]["parent"], listed["law"]["root"], listed["law"]["kind"]) == ("tiny", "/loras/law", "generate")
    assert listed["tiny"]["parent"] is None
    assert client.get("/v1/models/tiny:law").json() == listed["law"] == client.get("/v1/models/law").json()
    assert code_of(client.get("/v1/models/poems")) == (404, "model_not_found")
    assert code_of(client.post("/v1/chat/completions", json={**ASK, "model": "tiny:poems"})) == (404, "model_not_found")


def test_an_adapter_is_there_for_its_organizations_and_projects_only(server, adapters, tenant, client):
    principal = server.authenticator.principals["adapters-tenant"]
    kinds = {
        "ours": {"organizations": [principal.organization_id]},
        "our project's": {"organizations": [principal.organization_id], "projects": [principal.project_id]},
        "another project's": {"projects": ["proj_other"]},
        "theirs": {"organizations": ["org_other"]},
    }
    for name, fields in kinds.items():
        adapters[name] = AdapterInfo(name=name, path="/x", **fields)
    seen = {model["id"] for model in tenant.get("/v1/models").json()["data"]}
    assert seen == {"tiny", "vec", "law", "a:b", "ours", "our project's"}
    for name in kinds:
        answer = tenant.post("/v1/chat/completions", json={**ASK, "model": name})
        assert answer.status_code == (200 if name in seen else 404)
        assert tenant.get(f"/v1/models/{name}").status_code == (200 if name in seen else 404)
    assert client.post("/v1/chat/completions", json={**ASK, "model": "ours"}).status_code == 404


def test_a_key_can_be_restricted_to_adapters(server, adapters):
    with server.add_tenant("law-key", scopes=Scopes(models=("tiny",), adapters=("law",))) as client:
        assert client.post("/v1/chat/completions", json={**ASK, "model": "law"}).status_code == 200
        assert client.post("/v1/chat/completions", json={**ASK, "model": "tiny"}).status_code == 200
        refused = client.post("/v1/chat/completions", json={**ASK, "model": "tiny:a:b"})
        assert code_of(refused) == (403, "insufficient_permissions") and "adapters:a:b" in refused.text
        assert {model["id"] for model in client.get("/v1/models").json()["data"]} == {"tiny", "law"}
    with server.add_tenant("other-model", scopes=Scopes(models=("vec",))) as client:
        assert client.post("/v1/chat/completions", json={**ASK, "model": "law"}).status_code == 403


def test_loading_and_unloading_answer_as_vllm(client, server):
    load = {"lora_name": "pirate", "lora_path": "pirate", "model": "tiny"}
    loaded = client.post("/v1/load_lora_adapter", json=load)
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'pirate' added successfully.")
    assert server.chat.adapters["pirate"].path == str(packaged_adapter("pirate"))
    assert code_of(client.post("/v1/load_lora_adapter", json=load)) == (400, "lora_adapter_exists")
    assert client.post("/v1/load_lora_adapter", json={**load, "load_inplace": True}).status_code == 200
    assert client.post("/v1/chat/completions", json={**ASK, "model": "pirate"}).json()["model"] == "pirate"
    gone = client.post("/v1/unload_lora_adapter", json={"lora_name": "pirate"})
    assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'pirate' removed successfully.")
    again = client.post("/v1/unload_lora_adapter", json={"lora_name": "pirate"})
    assert code_of(again) == (404, "lora_adapter_not_found")


def test_what_cannot_be_loaded_is_refused_with_the_reason(client, server, tmp_path, adapters):
    def load(**changes: object) -> httpx.Response:
        return client.post(
            "/v1/load_lora_adapter", json={"lora_name": "new", "lora_path": "json", "model": "tiny", **changes}
        )

    assert code_of(load(lora_path=str(tmp_path))) == (403, "lora_path_not_allowed")
    below = Path(server.config.data_dir, "adapters", "link")
    below.parent.mkdir(parents=True, exist_ok=True)
    below.symlink_to(tmp_path)
    assert code_of(load(lora_path=str(below))) == (403, "lora_path_not_allowed"), "a link leads out"
    below.unlink()
    assert load(lora_path=str(below)).status_code == 200  # whether something is there, the engine says
    below.unlink(missing_ok=True)
    below.symlink_to(below)
    for path in ("a\0b", "\0", "~nobody-of-that-name/x", str(below), "x" * 4000 + "/y"):
        refused = load(lora_path=path)
        assert refused.status_code in (400, 403) and code_of(refused)[1], path[:40]
    assert "is the name of a model" in load(lora_name="vec").text
    assert code_of(load(lora_name="x", model="poems")) == (404, "model_not_found")
    assert load(lora_name="").status_code == load(lora_name="a\nb").status_code == 400
    server.chat.adapter_problem = AdapterChangeError("invalid", "not supported: DoRA")
    refused = load(lora_name="y")
    assert code_of(refused) == (400, "invalid_lora_adapter") and "DoRA" in refused.text


def test_only_platform_administrators_load_and_unload(server, tenant):
    principal = server.authenticator.principals["adapters-tenant"]
    server.authenticator.principals["their-admin"] = replace(principal, role=Role.ADMIN)
    for headers in ({}, {"authorization": "Bearer their-admin"}):
        for path, body in (("load", {"lora_path": "pirate"}), ("unload", {})):
            refused = tenant.post(f"/v1/{path}_lora_adapter", json={"lora_name": "x", **body}, headers=headers)
            assert refused.status_code == 403
    assert not server.chat.adapters
