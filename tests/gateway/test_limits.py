"""Limits at the front door: what is refused, what the headers say, what is given back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from asking import CHAT, chat, metric
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.store.ids import new_id
from kvarn.store.owner import LimitRule
from kvarn.wire.messages import RefusalReason
from raw_http import post_of

PROMPT = 4
"""Tokens of the prompt below: begin, user, x, assistant."""
HEADERS = {f"x-ratelimit-{part}-{kind}" for part in ("limit", "remaining", "reset") for kind in ("requests", "tokens")}


@pytest.fixture
def tenant(server: Any) -> Iterator[Any]:
    """Clients of new organisations: `tenant(tokens_per_minute=100)` has that limit."""
    clients = []

    def make(**limits: int) -> httpx.Client:
        name = new_id("tenant_")
        clients.append(server.add_tenant(name))
        principal = server.authenticator.principals[name]
        rules = (LimitRule(principal.organization_id, **limits),)
        server.authenticator.principals[name] = replace(principal, limits=rules)
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def remaining(answer: httpx.Response, kind: str = "tokens") -> int:
    return int(answer.headers[f"x-ratelimit-remaining-{kind}"])


def test_without_limits_no_headers_are_sent(server, client):
    assert not HEADERS & set(client.post(CHAT, json=chat(max_tokens=6)).headers)


@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_says_what_is_left(tenant, stream):
    client = tenant(requests_per_minute=5, tokens_per_minute=1000)
    answer = client.post(CHAT, json=chat(max_tokens=6, stream=stream))
    assert answer.status_code == 200 and set(answer.headers) >= HEADERS
    assert answer.headers["x-ratelimit-limit-requests"] == "5" and remaining(answer, "requests") == 4
    assert answer.headers["x-ratelimit-limit-tokens"] == "1000" and remaining(answer) == 1000 - PROMPT - 6
    assert re.fullmatch(r"1m0(\.\d+)?s|1m1s|1m0s", answer.headers["x-ratelimit-reset-tokens"])


@pytest.mark.parametrize(
    ("kind", "limits"), [("tokens", {"tokens_per_minute": 10}), ("requests", {"requests_per_minute": 1})]
)
def test_who_is_over_a_limit_is_told_which_and_when_to_come_back(tenant, kind, limits):
    client = tenant(**limits)
    assert client.post(CHAT, json=chat(max_tokens=6)).status_code == 200
    answer = client.post(CHAT, json=chat(max_tokens=6))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", kind)
    assert 59 <= int(answer.headers["retry-after"]) <= 61
    assert remaining(answer, kind) == 0
    asked = 10 if kind == "tokens" else 1
    assert f"limit {asked}, used {asked}, requested {asked}" in error["message"] and "org-" in error["message"]


def test_the_official_client_reads_the_refusal(server, tenant):
    raw = tenant(requests_per_minute=1)
    key = raw.headers["authorization"].removeprefix("Bearer ")
    with server.sdk(key) as sdk:
        sdk.chat.completions.create(**chat(max_tokens=6))
        with pytest.raises(openai.RateLimitError, match="requests per minute"):
            sdk.chat.completions.create(**chat(max_tokens=6))


def test_a_request_larger_than_the_limit_is_told_that_waiting_does_not_help(tenant):
    answer = tenant(tokens_per_minute=10).post(CHAT, json=chat(max_tokens=7))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "request_exceeds_limit", "max_tokens")
    assert "retry-after" not in answer.headers and "limit 10, requested 11" in error["message"]


def test_what_was_reserved_and_not_written_is_given_back(server, tenant, answering):
    client = tenant(tokens_per_minute=1000)
    answering("abc")  # three tokens and the end
    first = client.post(CHAT, json=chat(max_tokens=500)).json()["usage"]["total_tokens"]
    assert first == PROMPT + 4
    assert remaining(client.post(CHAT, json=chat(max_tokens=500))) == 1000 - first - PROMPT - 500


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refused_costs_nothing(server, tenant, stream):
    client = tenant(requests_per_minute=2, tokens_per_minute=100, concurrency=1)
    server.chat.refusal = RequestRefusedError(RefusalReason.QUEUE_FULL, "full", retry_after_s=1)
    for _ in range(5):
        assert client.post(CHAT, json=chat(max_tokens=6, stream=stream)).json()["error"]["code"] == "queue_full"
    server.chat.refusal = None
    answer = client.post(CHAT, json=chat(max_tokens=6))
    assert answer.status_code == 200
    assert remaining(answer, "requests") == 1 and remaining(answer) == 100 - PROMPT - 6


def test_what_was_lost_in_mid_answer_costs_what_was_written(server, tenant):
    client = tenant(tokens_per_minute=1000)
    server.chat.lose_after = 5
    client.post(CHAT, json=chat(max_tokens=100, stream=True))
    server.chat.lose_after = None
    assert remaining(client.post(CHAT, json=chat(max_tokens=6))) == 1000 - (PROMPT + 5) - (PROMPT + 6)


def test_who_leaves_pays_for_the_prompt(server, tenant, wait_for):
    client = tenant(tokens_per_minute=1000, concurrency=1)
    server.chat.hold = asyncio.Event()
    raw = server.connect()
    raw.sendall(post_of(CHAT, chat(max_tokens=500), f"authorization: {client.headers['authorization']}"))
    wait_for(lambda: server.chat.running, "the request to run")
    raw.close()
    wait_for(lambda: not server.chat.running, "the abort")
    server.chat.hold = None
    wait_for(
        lambda: client.post(CHAT, json=chat(max_tokens=900)).status_code != 429, "the place and the tokens to be free"
    )
    assert remaining(client.post(CHAT, json=chat(max_tokens=6))) <= 1000 - PROMPT


def test_a_place_is_free_again_when_the_answer_is_over(server, tenant, wait_for):
    client = tenant(concurrency=1)
    assert [client.post(CHAT, json=chat(max_tokens=6)).status_code for _ in range(30)] == [200] * 30
    server.chat.hold = asyncio.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, CHAT, json=chat(max_tokens=6))
        wait_for(lambda: server.chat.running, "the first to run")
        refused = client.post(CHAT, json=chat(max_tokens=6))
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "requests")
        assert refused.headers["retry-after"] == "1" and "running at once" in error["message"]
        server.loop.call_soon_threadsafe(server.chat.hold.set)
        assert running.result().status_code == 200


def test_without_max_tokens_the_length_of_earlier_answers_is_reserved(tenant, answering):
    client = tenant(tokens_per_minute=2000)
    answering("abcdefghi")  # ten tokens with the end
    first = client.post(CHAT, json=chat())
    assert remaining(first) == 2000 - PROMPT - 256
    second = client.post(CHAT, json=chat(n=3))
    assert remaining(second) == 2000 - (PROMPT + 10) - (PROMPT + 3 * 10)


def test_what_is_only_expected_never_makes_a_request_too_large(tenant, answering):
    client = tenant(tokens_per_minute=50)
    answering("abc")
    assert client.post(CHAT, json=chat()).status_code == 200
    assert client.post(CHAT, json=chat(max_tokens=47)).status_code == 400


def test_embeddings_and_completions_are_limited_too(tenant):
    client = tenant(tokens_per_minute=10)
    embedding = {"model": "vec", "input": "12345678"}
    answer = client.post("/v1/embeddings", json=embedding)
    left = remaining(answer)
    assert answer.status_code == 200 and left == 10 - answer.json()["usage"]["total_tokens"]
    assert client.post("/v1/embeddings", json=embedding).status_code == 429
    completion = {"model": "tiny", "prompt": "abc", "max_tokens": 6}
    assert remaining(client.post("/v1/completions", json=completion)) == 10 - 3 - 6, "each model counts for itself"


def test_refusals_and_reservations_are_metrics(server, tenant, client):
    limited = tenant(requests_per_minute=1)

    def metrics() -> tuple[float, float]:
        refused = metric(client, "kvarn_limited_requests_total", kind="requests", model="tiny")
        return refused, metric(client, "kvarn_limit_used_tokens_total", model="tiny")

    refused, used = metrics()
    limited.post(CHAT, json=chat(max_tokens=6, ignore_eos=True))
    limited.post(CHAT, json=chat(max_tokens=6))
    assert metrics() == (refused + 1, used + PROMPT + 6)
