"""One server with the flags that vLLM's users know: keys, names, CORS, a path prefix, JSON logs."""

from __future__ import annotations

import json
import signal

import httpx
import pytest

SMALL = ("--max-model-len", "512", "--kv-cache-memory-bytes", "64M")
PAGE = "https://chat.example"
ASK = {"messages": [{"role": "user", "content": "What is Kvarn?"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def served(serve_long):
    flags = ["--api-key", "one", "--api-key", "two", "--root-path", "/llm", "--allowed-origins", PAGE]
    flags += ["--served-model-name", "chat", "--served-model-name", "gpt-4o", "--log-format", "json"]
    return serve_long("kvarn-demo", *flags, *SMALL)


def keyed(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_every_key_is_honoured_and_no_other_also_on_loopback(served):
    url = f"{served.url}/v1/chat/completions"
    for key in ("one", "two"):
        assert httpx.post(url, json=ASK | {"model": "chat"}, headers=keyed(key), timeout=60).status_code == 200
    assert httpx.post(url, json=ASK | {"model": "chat"}, headers={"x-api-key": "one"}, timeout=60).status_code == 200
    for headers in ({}, keyed("three")):
        refused = httpx.post(url, json=ASK | {"model": "chat"}, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


def test_a_key_of_the_configuration_uses_models_and_administers_nothing(served):
    refused = httpx.get(f"{served.url}/v1/organization/projects", headers=keyed("one"))
    assert refused.status_code == 403
    stored = httpx.post(f"{served.url}/v1/conversations", json={}, headers=keyed("one"))
    assert stored.status_code == 200


def test_an_alias_reaches_the_model_under_its_name(served):
    headers = keyed("one")
    body = httpx.post(
        f"{served.url}/v1/chat/completions", json=ASK | {"model": "gpt-4o"}, headers=headers, timeout=60
    ).json()
    assert body["model"] == "chat"
    (model,) = httpx.get(f"{served.url}/v1/models", headers=headers).json()["data"]
    assert (model["id"], model["aliases"], model["max_model_len"]) == ("chat", ["gpt-4o"], 512)
    assert httpx.get(f"{served.url}/v1/models/gpt-4o", headers=headers).json()["id"] == "chat"


def test_a_page_of_an_allowed_origin_may_ask_and_read(served):
    url = f"{served.url}/v1/chat/completions"
    wishes = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    allowed = httpx.options(url, headers={"origin": PAGE, **wishes})
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    answer = httpx.get(f"{served.url}/v1/models", headers={"origin": PAGE, **keyed("one")})
    assert answer.headers["access-control-allow-origin"] == PAGE
    unauthorised = httpx.get(f"{served.url}/v1/models", headers={"origin": PAGE})
    assert unauthorised.status_code == 401 and unauthorised.headers["access-control-allow-origin"] == PAGE
    for origin in ("https://evil.example", "http://localhost:3000"):
        refused = httpx.options(url, headers={"origin": origin, **wishes})
        assert "access-control-allow-origin" not in refused.headers, origin


def test_requests_are_answered_with_and_without_the_path_prefix(served):
    for prefix in ("", "/llm"):
        assert httpx.get(f"{served.url}{prefix}/health").status_code == 200
        assert httpx.get(f"{served.url}{prefix}/v1/models").status_code == 401
        assert httpx.get(f"{served.url}{prefix}/v1/models", headers=keyed("one")).status_code == 200
    assert httpx.get(f"{served.url}/llm/llm/v1/models", headers=keyed("one")).status_code == 404
    assert httpx.get(f"{served.url}/openapi.json").json()["servers"] == [{"url": "/llm"}]


@pytest.mark.thorough
def test_every_line_of_a_json_log_is_an_object(serve):
    served = serve("kvarn-demo", *SMALL, "--log-format", "json", "--root-path", "/llm", KVARN_NONSENSE="1")
    httpx.get(f"{served.url}/v1/models", headers={"x-request-id": "id-7"})
    assert served.stop(signal.SIGTERM) == 0
    events = [json.loads(line) for line in served.log]
    assert all({"time", "level", "logger", "message"} <= event.keys() for event in events)
    (request,) = [event for event in events if event.get("request_id") == "id-7"]
    assert (request["message"], request["status"], request["client_left"]) == ("answered", 200, False)
    assert isinstance(request["seconds"], float)
    assert any("KVARN_NONSENSE" in event["message"] for event in events)
