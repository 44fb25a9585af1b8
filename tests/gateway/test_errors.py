"""Every refusal: its status, its OpenAI shape, the field it names, its headers."""

from __future__ import annotations

import re
from typing import Any

import httpx
import openai
import pytest

from asking import CHAT, HELLO, events_of
from kvarn.replica.client.protocol import ReplicaState, RequestRefusedError
from kvarn.wire.messages import RefusalReason

JSON = {"content-type": "application/json"}


def check(answer: httpx.Response, status: int, code: str | None, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json" and answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "tiny", "messages": NaN}',
        b'{"model": "\xff\xfe"}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800 lone"}]}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\udc00"}]}',
        b"[1, 2]",
        b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"model": "tiny", "metadata": ' + b'{"a":' * 90 + b"1" + b"}" * 90 + b"}",
        b'{"a":' * 30_000,
        b"\x00" * 1000,
        b'"' * 100_000,
        b"[" + b"1," * 50_000 + b"1]",
    ],
)
def test_a_body_that_is_not_sound_json_is_refused(client, body):
    check(client.post(CHAT, content=body, headers=JSON), 400, "invalid_json")


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"messages": None}, "invalid_value", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"temperature": "hot"}, "invalid_value", "temperature"),
        ({"n": 1000}, "invalid_value", "n"),
        ({"chat_template": "x"}, "unsupported_parameter", "chat_template"),
        ({"response_format": {"type": "grammar"}}, "unsupported_value", "response_format"),
        ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio"),
        ({"stop": ["x"] * 17}, "invalid_value", "stop"),
        ({"stop": "x" * 5000}, "invalid_value", "stop"),
        ({"max_tokens": 100_000}, "context_length_exceeded", "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ],
)
def test_a_wrong_field_is_named(server, client, change, code, param):
    body = {"model": "tiny", "messages": HELLO, **change}
    check(client.post(CHAT, json=body), 400, code, param)
    assert server.chat.submitted == []


def test_a_hundred_thousand_stop_strings_are_refused(serve):
    with serve() as server, server.client() as client:
        body = {"model": "tiny", "messages": HELLO, "stop": [f"stop {i}" for i in range(100_000)]}
        check(client.post(CHAT, json=body), 400, "invalid_value", "stop")


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers(server, client):
    long = [{"role": "user", "content": "x" * 20_000}]  # long enough to be tokenized in the pool
    error = check(
        client.post(CHAT, json={"model": "tiny", "messages": long}), 400, "context_length_exceeded", "messages"
    )
    said = (
        "This model's maximum context length is 512 tokens. However, you requested {} tokens ({} in the prompt, {} in "
    )
    assert error["message"].startswith(said.format(20004, 20003, 1))
    answer = client.post("/v1/completions", json={"model": "tiny", "prompt": list(range(200)) * 3})
    error = check(answer, 400, "context_length_exceeded", "prompt")
    assert error["message"].startswith(said.format(601, 600, 1))
    answer = client.post("/v1/completions", json={"model": "tiny", "prompt": [1, 2], "max_tokens": 511})
    error = check(answer, 400, "context_length_exceeded", "max_tokens")
    assert error["message"].startswith(said.format(513, 2, 511))
    answer = client.post("/v1/responses", json={"model": "tiny", "input": "x" * 600})
    error = check(answer, 400, "context_length_exceeded", "input")
    assert error["message"].startswith("This model's maximum context length is 512 tokens. However, you requested ")
    answer = client.post("/v1/embeddings", json={"model": "vec", "input": "x" * 100})
    error = check(answer, 400, "context_length_exceeded", "input[0]")
    assert error["message"].startswith("This model's maximum context length is 64 tokens. However, you requested ")
    assert server.chat.submitted == [] and server.embed.embedded == []


def test_anthropics_clients_are_told_of_the_context_in_anthropics_words(client):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 600}], "max_tokens": 5}
    answer = client.post("/v1/messages", json=asked)
    assert answer.status_code == 400
    assert re.fullmatch(r"prompt is too long: 6\d\d tokens > 512 maximum", answer.json()["error"]["message"])


def test_completions_refuse_too_many_prompts_and_unknown_ids(client):
    post = lambda prompt: client.post("/v1/completions", json={"model": "tiny", "prompt": prompt})  # noqa: E731
    check(post(["x"] * 129), 400, "invalid_value", "prompt")
    check(post([5, 100_000]), 400, "invalid_value", "prompt")
    check(post(""), 400, "invalid_value", "prompt")


def test_an_unknown_model_is_not_found(client, sdk):
    check(client.post(CHAT, json={"model": "nope", "messages": HELLO}), 404, "model_not_found", "model")
    check(client.get("/v1/models/org/nope"), 404, "model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("nope")


def test_a_model_of_the_wrong_kind_is_refused(client):
    check(client.post(CHAT, json={"model": "vec", "messages": HELLO}), 400, "model_not_supported", "model")


def test_a_model_that_is_not_ready_is_unavailable(server, client):
    server.chat.state, server.chat.progress = ReplicaState.STARTING, ("load weights", 0.5)
    error = check(client.post(CHAT, json={"model": "tiny", "messages": HELLO}), 503, "model_not_ready")
    assert "load weights" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (RefusalReason.QUEUE_FULL, 429, "queue_full"),
        (RefusalReason.QUEUE_TIMEOUT, 503, "queue_timeout"),
        (RefusalReason.PROMPT_TOO_LONG, 400, "context_length_exceeded"),
        (RefusalReason.NEVER_FITS, 400, "never_fits"),
        (RefusalReason.DRAINING, 503, "draining"),
        (RefusalReason.INVALID, 400, "invalid_value"),
        (RefusalReason.DUPLICATE_ID, 500, "internal_error"),
    ],
)
def test_each_refusal_of_the_engine_has_its_status(server, client, reason, status, code, stream):
    server.chat.refusal = RequestRefusedError(reason, "because", retry_after_s=2.2)
    answer = client.post(CHAT, json={"model": "tiny", "messages": HELLO, "stream": stream})
    check(answer, status, code)
    if status in (429, 503):
        assert answer.headers["retry-after"] == "3"


def test_an_engine_lost_before_the_first_token_is_unavailable(server, client):
    server.chat.lose_after = 0
    for stream in (False, True):
        answer = client.post(CHAT, json={"model": "tiny", "messages": HELLO, "stream": stream})
        check(answer, 503, "replica_lost")


def test_an_engine_lost_in_mid_stream_ends_it_with_an_error_event(server, client):
    server.chat.lose_after = 5
    answer = client.post(CHAT, json={"model": "tiny", "messages": HELLO, "stream": True})
    assert "[DONE]" not in answer.text and events_of(answer)[-1]["error"]["code"] == "replica_lost"
    check(client.post(CHAT, json={"model": "tiny", "messages": HELLO}), 503, "replica_lost")


def test_the_official_client_raises_the_error_of_a_broken_stream(server, sdk):
    server.chat.lose_after = 5
    seen = ""
    with pytest.raises(openai.APIError, match="engine was lost"):
        for chunk in sdk.chat.completions.create(model="tiny", messages=HELLO, stream=True):
            seen += chunk.choices[0].delta.content or ""
    assert seen == "Hello"


def test_an_unforeseen_failure_is_a_500_without_its_details(server, client):
    def fail(request: Any, index: int) -> list[int]:
        raise AssertionError("not reached")

    server.chat.generate = lambda request, hold=None: fail(request, 0)
    error = check(client.post(CHAT, json={"model": "tiny", "messages": HELLO}), 500, "internal_error")
    assert "not reached" not in error["message"]


def test_unknown_urls_and_methods_have_the_same_shape(client):
    check(client.get("/v1/nothing"), 404, "unknown_url")
    check(client.put(CHAT), 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/health", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
        ("/v1/completions", "POST"),
        (CHAT, "GET, HEAD, POST"),
        ("/v1/files/file-1", "GET, HEAD, DELETE"),
        ("/v1/conversations/conv_1", "GET, HEAD, POST, DELETE"),
        ("/v1/responses/input_tokens", "GET, HEAD, POST, DELETE"),  # also the id of a response, for all one knows
        ("/v1/organization/projects/proj_1/rate_limits/rl-a/b", "POST, DELETE"),
    ],
)
def test_a_wrong_method_is_told_all_that_the_path_has(client, path, allowed):
    answer = client.put(path)
    error = check(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed
    assert error["message"] == f"Not allowed to PUT {path}; allowed: {allowed}."


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_taken(client, content_type):
    headers = {} if content_type is None else {"content-type": content_type}
    error = check(client.post(CHAT, content=b"{}", headers=headers), 415, "unsupported_media_type")
    assert "application/json" in error["message"]


def test_a_large_body_is_refused_by_its_announced_length_and_by_its_chunks(client):
    check(client.post(CHAT, content=b" " * 300_000, headers=JSON), 413, "request_too_large")
    chunks = (b" " * 50_000 for _ in range(6))
    check(client.post(CHAT, content=chunks, headers=JSON), 413, "request_too_large")


def test_every_answer_carries_a_request_id(client):
    ids = {client.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert client.get("/nope", headers={"x-request-id": "mine-2"}).headers["x-request-id"] == "mine-2"
    for bad in ("x" * 200, 'a"b c', ""):
        assert client.get("/health", headers={"x-request-id": bad}).headers["x-request-id"] != bad
