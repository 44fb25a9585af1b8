"""Each request that did work is on the ledger once, with what its client was told; what was refused is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from asking import CHAT, chat
from fake_replica import answer_text
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.store.models import UsageEvent
from kvarn.wire.messages import AdapterInfo, RefusalReason
from raw_http import post_of


@pytest.fixture
def tenant(server: Any, request: Any) -> Iterator[httpx.Client]:
    """A client of an organisation of its own."""
    with server.add_tenant(request.node.name, key_id="key_1", user_id="user-1") as client:
        yield client


@pytest.fixture
def ledger(server: Any, request: Any, wait_for: Any) -> Any:
    """The events of the tenant, once there are so many."""

    async def read() -> list[UsageEvent]:
        organization = server.authenticator.principals[request.node.name].organization_id
        async with server.gateway.store.reading() as session:
            query = select(UsageEvent).where(UsageEvent.organization_id == organization)
            return list((await session.execute(query.order_by(UsageEvent.started_at))).scalars())

    def wait(count: int) -> list[UsageEvent]:
        wait_for(lambda: len(server.do(read())) >= count, f"{count} events")
        found: list[UsageEvent] = server.do(read())
        assert len(found) == count
        return found

    return wait


def test_an_answer_with_an_adapter_is_entered_under_its_model_with_the_adapters_name(server, tenant, ledger):
    server.chat.adapters = {"law": AdapterInfo(name="law", path="/law")}
    assert tenant.post(CHAT, json=chat(model="law")).status_code == 200
    (event,) = ledger(1)
    assert (event.model, event.adapter) == ("tiny", "law")


def test_a_finished_chat_is_entered_with_the_counts_its_client_was_told(server, tenant, ledger):
    server.chat.cached_tokens = 3
    answer = tenant.post(CHAT, json=chat(), headers={"x-request-id": "my-request"})
    told = answer.json()["usage"]
    (event,) = ledger(1)
    assert (event.input_tokens, event.output_tokens) == (told["prompt_tokens"], told["completion_tokens"])
    assert event.cached_tokens == 3 == told["prompt_tokens_details"]["cached_tokens"]
    assert (event.request_id, event.endpoint, event.model) == ("my-request", "/v1/chat/completions", "tiny")
    assert (event.key_id, event.user_id, event.outcome) == ("key_1", "user-1", "finished")
    assert len(event.model_version) == 16 and event.replica.endswith("/tiny") and event.ttft_ms is not None
    assert event.service_tier == "default" and event.currency == "usd" and event.cost == 0


def test_streams_completions_and_embeddings_are_entered_too(server, tenant, ledger):
    with tenant.stream("POST", CHAT, json=chat(stream=True)) as stream:
        stream.read()
    tenant.post("/v1/completions", json={"model": "tiny", "prompt": ["a", "bc"], "n": 2, "max_tokens": 5})
    tenant.post("/v1/embeddings", json={"model": "vec", "input": ["abc", "de"]})
    events = {event.endpoint: event for event in ledger(3)}
    assert events["/v1/chat/completions"].output_tokens == len(answer_text("Hello, världen! 🌍"))
    assert events["/v1/completions"].output_tokens == 2 * 2 * 5
    assert (events["/v1/embeddings"].input_tokens, events["/v1/embeddings"].output_tokens) == (5, 0)
    assert {event.outcome for event in events.values()} == {"finished"}


def test_an_aborted_stream_is_entered_with_what_it_had(server, tenant, ledger):
    server.chat.answer = lambda request, index: answer_text("x" * 400)
    server.chat.step_s = 0.002
    seen = 0
    with tenant.stream("POST", CHAT, json=chat(stream=True)) as stream:
        for line in stream.iter_lines():
            seen += line.count('"content":"x')
            if seen >= 10:
                break
    (event,) = ledger(1)
    assert event.outcome == "aborted" and seen <= event.output_tokens < 400


def test_a_request_whose_replica_died_is_entered_as_failed(server, tenant, ledger):
    server.chat.lose_after = 5
    server.chat.step_s = 0.001
    body = chat(stream=True, stream_options={"include_usage": True})
    with tenant.stream("POST", CHAT, json=body) as stream:
        assert "replica_lost" in json.dumps(list(stream.iter_lines()))
    (event,) = ledger(1)
    assert (event.outcome, event.output_tokens) == ("failed", 5)


def test_what_was_refused_is_not_entered(server, tenant, ledger):
    server.chat.refusal = RequestRefusedError(RefusalReason.QUEUE_FULL, "full")
    assert tenant.post(CHAT, json=chat()).status_code == 429
    assert tenant.post(CHAT, json=chat(model="none")).status_code == 404
    assert tenant.post(CHAT, json=chat(n=0)).status_code == 400
    server.embed.refusal = server.chat.refusal
    assert tenant.post("/v1/embeddings", json={"model": "vec", "input": "a"}).status_code == 429
    server.chat.refusal = None
    assert tenant.post(CHAT, json=chat()).status_code == 200
    (event,) = ledger(1)
    assert event.outcome == "finished"


def test_a_gateway_that_stops_leaves_no_journal(serve):
    with serve() as server, server.client() as client:
        root = Path(server.config.data_dir) / "usage"
        while_it_serves = set(root.iterdir())
        assert client.post(CHAT, json=chat()).status_code == 200
    # Its journal (a database and its log) is gone; those of other gateways of this machine are not.
    assert len(while_it_serves - set(root.iterdir())) == 2 and set(root.iterdir()) <= while_it_serves


@pytest.mark.usefixtures("tenant")
def test_an_embedding_whose_client_left_is_entered_with_its_prompt(server, ledger, wait_for, request):
    server.embed.step_s = 60.0
    raw = server.connect()
    raw.sendall(
        post_of(
            "/v1/embeddings", {"model": "vec", "input": ["abc", "de"]}, f"authorization: Bearer {request.node.name}"
        )
    )
    wait_for(lambda: server.embed.embedded, "the engine to be asked")
    raw.close()
    (event,) = ledger(1)
    assert (event.outcome, event.input_tokens) == ("aborted", 5), "the engine has been at it"
