"""What clients see when the server that runs a model fails, in each way in which the server can be told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from asking import events_of
from fake_replica import answer_text
from foreign_server import ForeignServer, foreign_gateway
from kvarn.store.models import UsageEvent

CHAT = "/v1/chat/completions"
LONG = {"model": "far", "messages": [{"role": "user", "content": "one two three four five six"}]}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ({"fault": "status", "status": 500}, 503, "replica_lost"),
        ({"fault": "status", "status": 400}, 400, "their_code"),
        ({"fault": "status", "status": 422}, 422, "their_code"),
        ({"fault": "status", "status": 401}, 502, "external_refused"),
        ({"fault": "status", "status": 404}, 502, "external_refused"),
        ({"fault": "status", "status": 302}, 503, "replica_lost"),
        ({"fault": "cut_at_once"}, 503, "replica_lost"),
        ({"fault": "cut", "after": 0}, 503, "replica_lost"),
        ({"fault": "garbage"}, 503, "replica_lost"),
        ({"fault": "error_event", "after": 0}, 503, "replica_lost"),
    ],
)
def test_a_failure_before_the_first_token_is_an_ordinary_error(
    far: Any, foreign: ForeignServer, fault: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    foreign.control(**fault)
    answer = far.post(CHAT, json={**LONG, "stream": stream})
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    if status == 400:
        assert error_of(answer)["message"] == "made to fail" and error_of(answer)["param"] == "messages"
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("operation", ["chat", "embeddings"])
def test_a_server_that_takes_no_connection_in_time_is_a_timeout(
    far: Any, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    async def refuse(*_: Any, **__: Any) -> httpx.Response:
        raise httpx.ConnectTimeout("")

    monkeypatch.setattr("kvarn.external.replica.httpx.AsyncClient.send", refuse)
    embed = operation == "embeddings"
    answer = far.post("/v1/embeddings" if embed else CHAT, json={"model": "far-vec", "input": "x"} if embed else LONG)
    assert (answer.status_code, error_of(answer)["code"]) == (504, "timeout")


@pytest.mark.parametrize("fault", ["cut", "error_event", "abort"])
def test_a_failure_in_mid_answer_ends_the_stream_with_an_error(far: Any, foreign: ForeignServer, fault: str) -> None:
    foreign.control(fault=fault)
    answer = far.post(CHAT, json={**LONG, "stream": True})
    *chunks, last = events_of(answer)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == ("one two " if fault != "abort" else "one two three four five six ")
    assert last["error"]["code"] == "replica_lost" and "[DONE]" not in answer.text
    assert len(foreign.requests) == 1, "what was shown is not asked for again"


def test_the_official_words_of_a_refusal_reach_the_client_of_each_api(far: Any, foreign: ForeignServer) -> None:
    foreign.control(fault="status", status=400, message="too long for me")
    message = far.post("/v1/messages", json={**LONG, "max_tokens": 5})
    assert message.status_code == 400 and message.json()["error"]["message"] == "messages: too long for me"
    response = far.post("/v1/responses", json={"model": "far", "input": "x"})
    assert response.status_code == 400 and error_of(response)["message"] == "too long for me"
    completion = far.post("/v1/completions", json={"model": "far", "prompt": "x"})
    assert completion.status_code == 400 and error_of(completion)["message"] == "too long for me"
    embedding = far.post("/v1/embeddings", json={"model": "far-vec", "input": "x"})
    assert embedding.status_code == 400 and error_of(embedding)["message"] == "too long for me"


def test_an_answer_whose_report_never_comes_is_whole(checkpoint: Path, tmp_path: Path, foreign: ForeignServer) -> None:
    foreign.control(fault="no_end")
    timeouts = {"between_tokens_s": 0.5}
    with two_gateway(checkpoint, tmp_path, [foreign], timeouts=timeouts) as gateway, gateway.client() as client:
        answer = client.post(CHAT, json=LONG).json()
    assert answer["choices"][0]["message"]["content"] == "one two three four five six "
    assert answer["usage"]["completion_tokens"] == 9, "estimated"


def test_a_client_that_leaves_ends_the_answer_there(far: Any, foreign: ForeignServer, wait_for: Any) -> None:
    foreign.control(chunk_s=0.05)
    many = {"model": "far", "messages": [{"role": "user", "content": "word " * 2000}], "stream": True}
    with far.stream("POST", CHAT, json=many) as answer:
        next(answer.iter_lines())
    wait_for(lambda: foreign.broken_off == 1, "the foreign server to notice")


# Several servers ------------------------------------------------------------------------------------------------------


def two_gateway(
    checkpoint: Path, tmp_path: Path, servers: list[ForeignServer], *, wait_ready: bool = True, **fields: Any
) -> Any:
    """A gateway whose model `far` is run by these servers; `external` is merged into its settings."""
    external = {
        "base_url": [server.url for server in servers],
        "model": "foreign-model",
        "probe_interval_s": 0.05,
        "price": {"input_per_million": 1_000_000, "cached_per_million": 0, "output_per_million": 2_000_000},
        **fields.pop("external", {}),
    }
    models = [{"name": "far", "external": external, **fields}, {"name": "tiny", "path": "tiny"}]
    return foreign_gateway({"models": models}, checkpoint, tmp_path, wait_ready=wait_ready)


@pytest.fixture
def pair(
    checkpoint: Path, tmp_path: Path, foreign: ForeignServer, foreign_servers: list[ForeignServer], wait_for: Any
) -> Iterator[Any]:
    external = {"retries": {"min_retries": 1_000}}
    breaker = {"min_requests": 4, "open_s": 600, "max_open_s": 600}
    with two_gateway(checkpoint, tmp_path, foreign_servers, external=external, breaker=breaker) as gateway:
        replicas = gateway.served["far"].replicas
        wait_for(lambda: len(replicas.ready) == 2, "both to be ready")
        with gateway.client() as client:
            gateway.http = client
            yield gateway


def test_prompts_that_begin_alike_go_to_the_same_server_and_others_spread(pair: Any, foreign_servers: Any) -> None:
    for conversation in range(20):
        messages = [{"role": "system", "content": f"Conversation {conversation}. " + "x" * 3000}]
        for turn in range(3):
            body = {"model": "far", "messages": [*messages, {"role": "user", "content": f"turn {turn}"}]}
            assert pair.http.post(CHAT, json=body).status_code == 200
    asked = [{each["messages"][0]["content"][:20] for each in server.requests} for server in foreign_servers]
    assert not asked[0] & asked[1] and len(asked[0] | asked[1]) == 20
    assert min(len(each) for each in asked) >= 2, "a server with fewer is less likely than 1 in 10,000"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fault", [{"fault": "status"}, {"fault": "status", "status": 429}, {"fault": "cut_at_once"}, {"fault": "garbage"}]
)
def test_what_fails_before_the_first_token_is_answered_by_the_other(
    pair: Any, foreign_servers: Any, fault: dict[str, Any], stream: bool
) -> None:
    first = pair.http.post(CHAT, json=LONG).headers["x-kvarn-replica"]
    bad = next(server for server in foreign_servers if f":{server.port}/" in first)
    good = next(server for server in foreign_servers if server is not bad)
    bad.control(**fault)
    answer = pair.http.post(CHAT, json={**LONG, "stream": stream})
    assert answer.status_code == 200 and answer.headers["x-kvarn-replica"] == f"127.0.0.1:{good.port}/far"
    assert len(bad.requests) == 2 and len(good.requests) == 1
    assert 'kvarn_external_retries_total{model="far"} 1.0' in pair.http.get("/metrics").text


def test_a_request_is_billed_once_with_the_replica_that_answered(
    pair: Any, foreign_servers: Any, wait_for: Any
) -> None:
    with pair.add_tenant("payer", key_id="key_1") as tenant:
        first = tenant.post(CHAT, json=LONG)
        bad = next(server for server in foreign_servers if f":{server.port}/" in first.headers["x-kvarn-replica"])
        bad.control(fault="cut_at_once")
        second = tenant.post(CHAT, json=LONG)
        bad.control(fault="cut")
        broken = tenant.post(CHAT, json={**LONG, "stream": True})
    organization = pair.authenticator.principals["payer"].organization_id

    async def read() -> list[UsageEvent]:
        async with pair.gateway.store.reading() as session:
            query = select(UsageEvent).where(UsageEvent.organization_id == organization)
            return list((await session.execute(query.order_by(UsageEvent.finished_at, UsageEvent.id))).scalars())

    wait_for(lambda: len(pair.do(read())) >= 3, "the events")
    events = {event.request_id: event for event in pair.do(read())}
    assert len(events) == 3
    for answer in (first, second):
        event, usage = events[answer.headers["x-request-id"]], answer.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        counts = (event.input_tokens, event.cached_tokens, event.output_tokens)
        assert counts == (usage["prompt_tokens"], cached, usage["completion_tokens"])
        assert event.replica == answer.headers["x-kvarn-replica"] and event.outcome == "finished"
        assert event.cost == (counts[0] - cached + 2 * counts[2]) * 10**9
    event = events[broken.headers["x-request-id"]]
    assert (event.outcome, event.output_tokens) == ("failed", 2), "what was shown of it"


def test_a_server_that_fails_often_is_left_alone(pair: Any, foreign_servers: Any) -> None:
    first = pair.http.post(CHAT, json=LONG).headers["x-kvarn-replica"]
    bad = next(server for server in foreign_servers if f":{server.port}/" in first)
    bad.control(fault="status", status=500)
    for _ in range(20):
        assert pair.http.post(CHAT, json=LONG).status_code == 200
    assert len(bad.requests) == 4, "three failures of four results open it"
    page = pair.http.get("/metrics").text
    assert f'kvarn_circuit_breaker_open{{model="far",replica="{first}"}} 1.0' in page
    outcome = f'kvarn_external_requests_total{{model="far",outcome="failed",replica="{first}"}}'
    assert outcome in page


def test_a_dead_server_is_noticed_and_comes_back(
    checkpoint: Path, tmp_path: Path, foreign: ForeignServer, wait_for: Any
) -> None:
    own = ForeignServer(foreign.port + 1 if foreign.port < 31_000 else foreign.port - 1)
    own.start()
    try:
        with two_gateway(checkpoint, tmp_path, [own]) as gateway, gateway.client() as client:
            assert client.post(CHAT, json=LONG).status_code == 200
            own.stop()
            answer = client.post(CHAT, json=LONG)
            assert answer.status_code == 503
            wait_for(lambda: str(gateway.served["far"].state) == "down", "the probes to notice")
            answer = client.post(CHAT, json=LONG)
            assert (answer.status_code, error_of(answer)["code"]) == (503, "model_not_ready")
            own.start()
            wait_for(lambda: client.post(CHAT, json=LONG).status_code == 200, "it to be ready again")
    finally:
        own.stop()


@pytest.mark.parametrize(
    ("settings", "state", "why"),
    [
        ({"loading": True}, "starting", "loads the model"),
        ({"models": ["another"]}, "down", "has no model 'foreign-model'; it has: 'another'"),
        ({"key": "secret"}, "down", "Incorrect API key"),
    ],
)
def test_probes_tell_why_a_server_is_not_ready(
    checkpoint: Path,
    tmp_path: Path,
    foreign: ForeignServer,
    wait_for: Any,
    settings: dict[str, Any],
    state: str,
    why: str,
) -> None:
    foreign.control(**settings)
    with two_gateway(checkpoint, tmp_path, [foreign], wait_ready=False) as gateway:
        replica = next(iter(gateway.served["far"].replicas.values()))
        wait_for(lambda: why in replica.progress[0], "the probe")
        assert str(replica.state) == state
        foreign.reset()
        wait_for(lambda: str(replica.state) == "ready", "it to be ready")


def test_servers_without_a_list_of_models_are_probed_by_their_health_or_not_at_all(
    checkpoint: Path, tmp_path: Path, foreign: ForeignServer, wait_for: Any
) -> None:
    foreign.control(models=[])
    by_health, trusted = ({"probe": probe} for probe in ("health", "none"))
    with two_gateway(checkpoint, tmp_path, [foreign], external=by_health) as gateway, gateway.client() as client:
        assert client.post(CHAT, json=LONG).status_code == 200
        foreign.control(loading=True)
        wait_for(lambda: client.get("/ready").status_code == 503, "the probe")
    home = tmp_path / "trusted"
    with two_gateway(checkpoint, home, [foreign], external=trusted) as gateway, gateway.client() as client:
        assert client.post(CHAT, json=LONG).status_code == 200


def test_the_key_is_sent_and_read_again_from_its_file(
    checkpoint: Path, tmp_path: Path, foreign: ForeignServer, wait_for: Any
) -> None:
    key = tmp_path / "key"
    key.write_text("first\n")
    foreign.control(key="first")
    external = {"api_key_file": str(key)}
    with two_gateway(checkpoint, tmp_path, [foreign], external=external) as gateway, gateway.client() as client:
        assert client.post(CHAT, json=LONG).status_code == 200
        foreign.control(key="second")
        key.write_text("second")
        wait_for(lambda: client.post(CHAT, json=LONG).status_code == 200, "the new key")


@pytest.mark.parametrize(
    ("fault", "timeouts"),
    [
        ({"fault": "hang"}, {"first_token_s": 0.3}),
        ({"fault": "hang_after", "after": 0}, {"first_token_s": 0.3}),
        ({"fault": "hang"}, {"total_s": 0.3}),
    ],
)
def test_a_server_that_hangs_is_given_up(
    checkpoint: Path, tmp_path: Path, foreign: ForeignServer, fault: dict[str, Any], timeouts: dict[str, float]
) -> None:
    with two_gateway(checkpoint, tmp_path, [foreign], timeouts=timeouts) as gateway, gateway.client() as client:
        foreign.control(**fault)
        answer = client.post(CHAT, json={**LONG, "stream": True})
        assert (answer.status_code, error_of(answer)["code"]) == (504, "timeout")
        assert "0.3 s" in error_of(answer)["message"]


def test_a_hang_in_mid_answer_ends_the_stream(checkpoint: Path, tmp_path: Path, foreign: ForeignServer) -> None:
    with two_gateway(checkpoint, tmp_path, [foreign], timeouts={"between_tokens_s": 1}) as gateway:
        foreign.control(fault="hang_after")
        with gateway.client() as client:
            *chunks, last = events_of(client.post(CHAT, json={**LONG, "stream": True}))
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "one two " and last["error"]["code"] == "timeout"


def test_another_model_answers_where_the_servers_fail(checkpoint: Path, tmp_path: Path, foreign: ForeignServer) -> None:
    fallback = [{"model": "tiny", "on": ["error", "timeout", "not_ready", "overload"]}]
    fields = {"fallback": fallback, "load_shedding": True, "timeouts": {"first_token_s": 0.5}}
    with two_gateway(checkpoint, tmp_path, [foreign], **fields) as gateway, gateway.client() as client:
        gateway.chat.answer = lambda request, index: answer_text("from here")
        assert client.post(CHAT, json=LONG).json()["model"] == "far"
        foreign.control(fault="status", status=400)
        assert client.post(CHAT, json=LONG).status_code == 400, "another model would refuse it too"
        for fault in ({"fault": "hang"}, {"fault": "status", "status": 500}, {"fault": "status", "status": 429}):
            foreign.control(**fault)
            for stream in (True, False):
                answer = client.post(CHAT, json={**LONG, "stream": stream})
                assert answer.status_code == 200, answer.text
                told = events_of(answer)[0] if stream else answer.json()
                assert told["model"] == "tiny" and "from=far" in answer.headers["x-kvarn-fallback"]
                assert "x-kvarn-replica" not in answer.headers
        page = client.get("/metrics").text
        assert 'kvarn_fallbacks_total{fallback="tiny",model="far",reason="timeout"}' in page


def test_moderation_looks_at_answers_and_their_tool_calls(
    checkpoint: Path, tmp_path: Path, foreign: ForeignServer
) -> None:
    external = {"base_url": foreign.url, "model": "foreign-model", "probe_interval_s": 0.05}
    safety = {"moderate_output": True, "rules": ["(?i)uppsala|five six"], "threshold": 0.999}
    config = {"models": [{"name": "far", "external": external}, {"name": "tiny", "path": "tiny"}], "safety": safety}
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    with foreign_gateway(config, checkpoint, tmp_path) as gateway, gateway.client() as client:
        for fields in ({}, {"tools": [tool]}):
            for stream in (True, False):
                answer = client.post(CHAT, json={**LONG, **fields, "stream": stream})
                assert "Uppsala" not in answer.text and "five six" not in answer.text
                assert "content_filter" in answer.text
        harmless = {"model": "far", "messages": [{"role": "user", "content": "all is well"}], "logprobs": False}
        answer = client.post(CHAT, json=harmless)
        assert answer.json()["choices"][0]["message"]["content"] == "all is well "
        assert json.loads(answer.text)["usage"]["completion_tokens"] == 3


def test_more_than_a_server_takes_at_once_is_answered_elsewhere(
    checkpoint: Path, tmp_path: Path, foreign: ForeignServer, wait_for: Any
) -> None:
    external, fallback = {"max_concurrency": 1}, [{"model": "tiny", "on": ["overload"]}]
    fields = {"external": external, "fallback": fallback, "load_shedding": True}
    with two_gateway(checkpoint, tmp_path, [foreign], **fields) as gateway, gateway.client() as client:
        gateway.chat.answer = lambda request, index: answer_text("from here")
        foreign.control(fault="hang_after", after=1)
        with client.stream("POST", CHAT, json={**LONG, "stream": True}) as first:
            lines = first.iter_lines()  # the connection is closed when this is gone
            next(lines)
            foreign.control(fault=None)
            second = httpx.post(f"{gateway.url}{CHAT}", json=LONG, timeout=20)
            assert second.json()["model"] == "tiny"
        replica = next(iter(gateway.served["far"].replicas.values()))
        wait_for(lambda: replica.in_flight == 0, "the first to end")
        assert client.post(CHAT, json=LONG).json()["model"] == "far"


def test_a_busy_server_is_left_alone_for_the_time_it_names(
    checkpoint: Path, tmp_path: Path, foreign: ForeignServer
) -> None:
    with two_gateway(checkpoint, tmp_path, [foreign]) as gateway, gateway.client() as client:
        foreign.control(fault="status", status=429, headers={"retry-after": "20"}, times=1)
        for _ in range(3):
            answer = client.post(CHAT, json=LONG)
            assert (answer.status_code, error_of(answer)["code"]) == (503, "overloaded")
            assert 1 <= int(answer.headers["retry-after"]) <= 20
        assert len(foreign.requests) == 1


def test_retries_stop_at_their_budget(
    checkpoint: Path, tmp_path: Path, foreign: ForeignServer, foreign_servers: list[ForeignServer], wait_for: Any
) -> None:
    external = {"retries": {"share": 0, "min_retries": 2, "window_s": 3600}}
    breaker = {"min_requests": 1_000}
    with two_gateway(checkpoint, tmp_path, foreign_servers, external=external, breaker=breaker) as gateway:
        wait_for(lambda: len(gateway.served["far"].replicas.ready) == 2, "both to be ready")
        for server in foreign_servers:
            server.control(fault="status", status=500)
        with gateway.client() as client:
            assert [client.post(CHAT, json=LONG).status_code for _ in range(5)] == [503] * 5
    assert sum(len(server.requests) for server in foreign_servers) == 5 + 2
