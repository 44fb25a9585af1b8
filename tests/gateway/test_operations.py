"""Models, readiness, tokens, documentation: everything that is not an answer of a model."""

from __future__ import annotations

import re
from typing import Any

import httpx
import openai

from kvarn.replica.api import ReplicaState
from kvarn.wire.messages import EngineStats


def test_models_are_listed_with_readiness_and_capacity(house: Any, sdk: openai.OpenAI) -> None:
    house.chat.stats = EngineStats(kv_blocks_total=64, kv_blocks_free=60, running=3, waiting=2)
    listed = {model.id: model.model_dump() for model in sdk.models.list()}
    assert list(listed) == ["tiny", "vec"]
    assert listed["tiny"]["ready"] and listed["tiny"]["kind"] == "generate" and listed["tiny"]["max_model_len"] == 512
    assert listed["tiny"]["capacity"] == {
        "kv_blocks_total": 64,
        "kv_blocks_free": 60,
        "running": 3,
        "waiting": 2,
    }
    assert sdk.models.retrieve("vec").model_dump()["kind"] == "embed"


def test_ready_says_how_far_each_model_is(house: Any, client: httpx.Client) -> None:
    assert client.get("/ready").json()["models"]["tiny"] == {"ready": True, "state": "ready"}
    house.chat.state, house.chat.progress = ReplicaState.STARTING, ("load weights", 0.4)
    answer = client.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["models"]["tiny"] == {
        "ready": False,
        "state": "starting",
        "stage": "load weights",
        "progress": 0.4,
    }
    assert client.get("/health").status_code == 200


def test_tokens_go_there_and_back(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"model": "tiny", "prompt": "hå", "return_token_strs": True}).json()
    assert tokens["tokens"] == list("hå".encode()) and tokens["count"] == 3 and tokens["max_model_len"] == 512
    assert len(tokens["token_strs"]) == 3
    assert client.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "hå"}
    chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()
    text = client.post("/detokenize", json={"model": "tiny", "tokens": chat["tokens"]}).json()["prompt"]
    assert text == "<bos><|user|>x<|assistant|>"


def test_the_documentation_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.status_code == 200 and not re.search(r"(src|href)=\"(https?:)?//", page.text)
    assert client.get("/").json()["links"]["docs"] == "/docs"


def test_the_openapi_document_describes_every_body_and_resolves(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    references = set(re.findall(r'"\$ref":\s*"#/components/schemas/([^"]+)"', client.get("/openapi.json").text))
    assert references <= schemas.keys() and "ChatCompletionRequest" in references
    assert "messages" in schemas["ChatCompletionRequest"]["properties"]
    posts = {path for path, methods in document["paths"].items() if "post" in methods}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/files", "/v1/rerank"} <= posts
    bodiless = {path for path in posts if path.endswith(("/cancel", "/archive"))}
    assert all("requestBody" in document["paths"][path]["post"] for path in posts - bodiless)
    assert not any("422" in op["responses"] for ops in document["paths"].values() for op in ops.values())


def test_metrics_count_requests_and_measure_tokens(serve: Any, wait_for: Any) -> None:
    with serve() as house, house.client() as client:
        wait_for(lambda: client.get("/ready").status_code == 200, "the gateway to be ready")
        _check_metrics(client)


def _check_metrics(client: httpx.Client) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    client.post("/v1/chat/completions", json={**body, "model": "made-up-1"})
    client.get("/nowhere/made-up-2")
    text = client.get("/metrics").text
    counted = 'kvarn_requests_total{endpoint="/v1/chat/completions",model="tiny",status="200"} 1.0'
    assert counted in text
    assert 'kvarn_requests_total{endpoint="/v1/chat/completions",model="unknown",status="404"} 1.0' in text
    assert "made-up" not in text
    assert 'kvarn_ttft_seconds_count{model="tiny"} 1.0' in text
    assert 'kvarn_tpot_seconds_count{model="tiny"} 1.0' in text
    assert 'kvarn_itl_seconds_count{model="tiny"} 21.0' in text
    assert 'kvarn_slo_requests_total{model="tiny",outcome="met"} 1.0' in text
    assert 'kvarn_goodput_ratio{model="tiny"} 1.0' in text
    assert 'kvarn_replica_up{model="tiny"} 1.0' in text
