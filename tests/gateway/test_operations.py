"""Models, readiness, tokens, documentation: everything that is not an answer of a model."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import kvarn
from asking import CHAT, chat
from kvarn.replica.client.protocol import ReplicaState
from kvarn.wire.messages import EngineStats


def test_models_are_listed_with_readiness_and_capacity(server, sdk):
    server.chat.stats = EngineStats(kv_blocks_total=64, kv_blocks_free=60, running=3, waiting=2)
    listed = {model.id: model.model_dump() for model in sdk.models.list()}
    assert list(listed) == ["tiny", "vec"]
    assert listed["tiny"]["ready"] and listed["tiny"]["kind"] == "generate" and listed["tiny"]["max_model_len"] == 512
    capacity = {"kv_blocks_total": 64, "kv_blocks_free": 60, "running": 3, "waiting": 2}
    assert listed["tiny"]["capacity"] == capacity
    assert sdk.models.retrieve("vec").model_dump()["kind"] == "embed"


def test_ready_says_how_far_each_model_is(server, client):
    assert client.get("/ready").json()["models"]["tiny"] == {"ready": True, "state": "ready"}
    server.chat.state, server.chat.progress = ReplicaState.STARTING, ("load weights", 0.4)
    answer = client.get("/ready")
    assert answer.status_code == 503
    loading = {"ready": False, "state": "starting", "stage": "load weights", "progress": 0.4}
    assert answer.json()["models"]["tiny"] == loading
    assert client.get("/health").status_code == 200
    assert client.get("/ready", params={"models": "any"}).status_code == 200
    server.embed.state = ReplicaState.STARTING
    none = client.get("/ready", params={"models": "any"})
    assert none.status_code == 503 and none.json()["status"] == "not_ready"


def test_tokens_go_there_and_back(client):
    tokens = client.post("/tokenize", json={"model": "tiny", "prompt": "hå", "return_token_strs": True}).json()
    assert tokens["tokens"] == list("hå".encode()) and tokens["count"] == 3 and tokens["max_model_len"] == 512
    assert len(tokens["token_strs"]) == 3
    assert client.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "hå"}
    chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()
    text = client.post("/detokenize", json={"model": "tiny", "tokens": chat["tokens"]}).json()["prompt"]
    assert text == "<bos><|user|>x<|assistant|>"


def test_browsers_find_a_picture_and_the_operations_by_their_other_name(client):
    assert client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"
    assert client.get("/redoc", follow_redirects=True).text == client.get("/docs/api").text


def test_the_page_of_operations_needs_nothing_from_elsewhere(client):
    page = client.get("/docs/api")
    assert page.status_code == 200 and not re.search(r"(src|href)=\"(https?:)?//", page.text)
    assert client.get("/").json()["links"]["docs"] == "/docs"
    assert '<input id="key" type="password"' in page.text and "headers.authorization" in page.text


def test_the_openapi_document_describes_every_body_and_resolves(client):
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    references = set(re.findall(r'"\$ref":\s*"#/components/schemas/([^"]+)"', client.get("/openapi.json").text))
    assert references <= schemas.keys() and "ChatCompletionRequest" in references
    assert "messages" in schemas["ChatCompletionRequest"]["properties"]
    posts = {path for path, methods in document["paths"].items() if "post" in methods}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/files", "/v1/rerank"} <= posts
    bodiless = {path for path in posts if path.endswith(("/cancel", "/archive", "/sleep", "/wake_up", "/prefetch"))}
    assert all("requestBody" in document["paths"][path]["post"] for path in posts - bodiless)
    assert not any("422" in op["responses"] for ops in document["paths"].values() for op in ops.values())


def test_metrics_count_requests_and_measure_tokens(serve):
    with serve() as server, server.client() as client:
        assert client.post(CHAT, json=chat()).status_code == 200
        client.post(CHAT, json=chat(model="made-up-1"))
        client.get("/nowhere/made-up-2")
        page = client.get("/metrics").text
    for line in (
        'kvarn_requests_total{endpoint="/v1/chat/completions",model="tiny",status="200"} 1.0',
        'kvarn_requests_total{endpoint="/v1/chat/completions",model="unknown",status="404"} 1.0',
        'kvarn_ttft_seconds_count{model="tiny"} 1.0',
        'kvarn_tpot_seconds_count{model="tiny"} 1.0',
        'kvarn_itl_seconds_count{model="tiny"} 21.0',
        'kvarn_slo_requests_total{model="tiny",outcome="met"} 1.0',
        'kvarn_goodput_ratio{model="tiny"} 1.0',
        'kvarn_replica_up{model="tiny"} 1.0',
    ):
        assert line in page
    assert "made-up" not in page


def test_version_ping_and_load_answer_in_the_forms_that_load_balancers_know(client):
    assert client.get("/version").json() == {"version": kvarn.__version__}
    assert (
        client.get("/ping").status_code == client.post("/ping").status_code == client.head("/ping").status_code == 200
    )
    assert client.get("/load").json() == {"server_load": 0}


def test_load_counts_the_requests_that_are_being_answered(server, client, wait_for):
    def load() -> int:
        answer: int = client.get("/load").json()["server_load"]
        return answer

    server.chat.hold = asyncio.Event()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(httpx.post, f"{server.url}/v1/completions", json={"model": "tiny", "prompt": "x"})
        wait_for(lambda: load() == 1, "the request to be taken")
        server.loop.call_soon_threadsafe(server.chat.hold.set)
        assert answer.result().status_code == 200
    wait_for(lambda: load() == 0, "the request to be over")


@pytest.mark.parametrize(
    ("path", "meant", "base"),
    [
        ("/chat/completions", "/v1/chat/completions", "/v1"),
        ("/v1/v1/chat/completions", "/v1/chat/completions", "/v1"),
        ("/embeddings", "/v1/embeddings", "/v1"),
        ("/models/tiny", "/v1/models/tiny", "/v1"),
        ("/organization/projects", "/v1/organization/projects", "/v1"),
        ("/messages", "/v1/messages", ""),
        ("/v1/v1/messages", "/v1/messages", ""),
        ("/v1/tokenize", "/tokenize", ""),
    ],
)
def test_a_path_that_is_nearly_right_gets_a_hint(client, path, meant, base):
    for method in ("GET", "POST"):
        answer = client.request(method, path)
        assert answer.status_code == 404
        url = str(client.base_url).rstrip("/") + base
        hint = f"Did you mean {meant}? Clients of this server have the base URL {url}."
        assert answer.json()["error"]["message"].endswith(hint)


def test_a_path_that_is_nothing_gets_none(client):
    for path in ("/v1", "/v1/v1", "/v2/chat/completions", "/chat"):
        assert "Did you mean" not in client.get(path).json()["error"]["message"]


def test_metrics_are_compressed_and_in_the_format_that_is_asked_for(client):
    client.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
    plain = client.get("/metrics", headers={"accept-encoding": "identity"})
    assert plain.headers["content-type"].startswith("text/plain; version=") and "content-encoding" not in plain.headers
    assert {family.name for family in text_string_to_metric_families(plain.text)} >= {
        "kvarn_requests",
        "kvarn_batch_size",
    }
    prometheus = {
        "accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
        "accept-encoding": "gzip",
    }
    packed = client.get("/metrics", headers=prometheus)
    assert packed.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(packed.text) / 3
    families = {family.name: family for family in openmetrics_families(packed.text)}  # the parser is strict
    assert families["kvarn_requests"].type == "counter" and packed.text.endswith("# EOF\n")


def test_the_endpoint_label_is_the_whole_path_template(client):
    paths = {
        "/v1/organization/projects": "/v1/organization/projects",
        "/v1/organization/projects/proj_1": "/v1/organization/projects/{project_id}",
        "/v1/organization/projects/proj_1/users": "/v1/organization/projects/{project_id}/users",
        "/v1/organization/audit_logs": "/v1/organization/audit_logs",
        "/v1/organization/nothing": "unknown",
        "/nothing/at/all": "unknown",
        "/v1/models/tiny": "/v1/models/{model}",
    }
    before = _endpoint_labels(client)
    for path in paths:
        client.get(path)
    labels = _endpoint_labels(client)
    assert set(paths.values()) <= labels
    templates = set(client.get("/openapi.json").json()["paths"]) | {"/docs", "/docs/api", "/openapi.json", "unknown"}
    assert labels - before <= templates


def _endpoint_labels(client: httpx.Client) -> set[str]:
    return set(re.findall(r'kvarn_requests_total{endpoint="([^"]+)"', client.get("/metrics").text))


def test_a_trace_is_named_beside_the_times_of_its_request_and_vllms_names_are_there(client):
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    assert client.post(CHAT, json=chat(max_tokens=4), headers=headers).status_code == 200
    page = client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"}).text
    families = {family.name: family for family in openmetrics_families(page)}
    for name in ("kvarn_ttft_seconds", "kvarn_tpot_seconds", "kvarn_request_seconds"):
        assert trace in {each.exemplar.labels["trace_id"] for each in families[name].samples if each.exemplar}, name
    assert {"vllm:e2e_request_latency_seconds", "vllm:request_success", "kvarn_turns"} <= set(families)
    ended = {sample.labels["finished_reason"] for sample in families["vllm:request_success"].samples}
    assert "length" in ended
    assert families["kvarn_answer_seconds"].samples
