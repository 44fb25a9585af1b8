"""The timeline of requests: its total is what was measured, whatever the request; it has the engine's events."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest

from kvarn.answers import timeline
from kvarn.answers.record import RequestRecord
from kvarn.answers.timeline import RequestTimeline
from kvarn.gateway import middleware
from kvarn.observe.timeline import EngineEventKind

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "any", "schema": {"type": "integer"}}}
REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    ("POST", "/v1/chat/completions", {**CHAT, "n": 2, "logprobs": True, "stream": True}),
    ("POST", "/v1/chat/completions", {**CHAT, "store": True}),
    ("POST", "/v1/chat/completions", {**CHAT, "model": "nobody"}),
    ("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 10**6}),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 3}),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": "a", "stream": True}),
    ("POST", "/v1/messages", CHAT),
    ("POST", "/v1/messages", {**CHAT, "stream": True}),
    ("POST", "/v1/responses", {"model": "tiny", "input": "hi"}),
    ("POST", "/v1/responses", {"model": "tiny", "input": "hi", "stream": True, "store": False}),
    ("POST", "/api/chat", {"model": "tiny", "messages": CHAT["messages"]}),
    ("POST", "/api/generate", {"model": "tiny", "prompt": "hi", "stream": False}),
    ("POST", "/v1/embeddings", {"model": "vec", "input": ["a", "b"]}),
    ("POST", "/v1/moderations", {"input": "a text"}),
    ("POST", "/v1/chat/completions", "no object"),
    ("GET", "/v1/models", None),
    ("GET", "/v1/nowhere", None),
    ("GET", "/health", None),
]
STAGES = ("response_cache", "arrivals", "limits", "replica", "admission", "ledger")


def test_totals_of_requests_of_all_kinds_are_what_was_measured(server, monkeypatch):
    """A tenth of a millisecond passes at each reading of the clock: what is done between its readings takes none."""
    readings = itertools.count()
    records: list[RequestRecord] = []
    new_record = middleware.new_record

    def noted(scope: Any) -> RequestRecord:
        records.append(new_record(scope))
        return records[-1]

    monkeypatch.setattr(timeline, "now", lambda: next(readings) / 10_000)
    monkeypatch.setattr(middleware, "new_record", noted)

    async def ask(method: str, path: str, body: Any) -> None:
        transport = httpx.ASGITransport(server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for _ in range(12):
                began = timeline.now()
                await client.request(method, path, json=body)
                total = timeline.now() - began
                told = records[-1].timeline
                assert abs(told.total_s - total) < 0.001, (path, body, told.events, total)

    for request in REQUESTS:
        server.do(ask(*request))
    assert len(records) == 12 * len(REQUESTS)


def test_a_streamed_chat_has_every_part_in_order(server, monkeypatch):
    records: list[RequestRecord] = []
    new_record = middleware.new_record
    monkeypatch.setattr(middleware, "new_record", lambda scope: records.append(new_record(scope)) or records[-1])
    with server.client() as client:
        client.post("/v1/chat/completions", json={**CHAT, "stream": True}).raise_for_status()
        client.get("/health")
    names = [event.name for event in records[0].timeline.events if not event.name.startswith("engine.")]
    assert names == [
        *("received", "authenticated", "read", "parsed", "resolved", "templated", "tokenized", "prompted"),
        *(f"stage.{stage}" for stage in STAGES),
        *("moderated", "sent", "first_token", "generated", "settled", "ended"),
    ]


def test_an_engines_events_are_moved_to_the_gateways_clock(monkeypatch):
    monkeypatch.setattr(timeline, "now", lambda: 10.0)
    noted = RequestTimeline()
    flat = [EngineEventKind.QUEUED, 0, 3, EngineEventKind.FIRST_TOKEN, 600_000]
    noted.add_engine(flat, sent_s=9.2)  # 0.8 s there and back, of which the engine had 0.6
    assert [(each.name, each.at_s, dict(each.numbers)) for each in noted.events[1:]] == [
        ("engine.queued", pytest.approx(9.3), {"waiting": 3}),
        ("engine.first_token", pytest.approx(9.9), {}),
    ]


def test_the_last_delta_of_a_slow_reader_does_not_move_the_engines_events(monkeypatch):
    noted = RequestTimeline()
    monkeypatch.setattr(timeline, "now", lambda: 10.2)
    noted.add_engine([EngineEventKind.FIRST_TOKEN, 100_000], sent_s=10.0)
    monkeypatch.setattr(timeline, "now", lambda: 70.0)
    noted.add_engine([EngineEventKind.FINISHED, 1_000_000, 10, 0, 0, 0], sent_s=10.0)
    assert [each.at_s for each in noted.events[1:]] == [pytest.approx(10.15), pytest.approx(11.05)]
    noted.add_engine([EngineEventKind.FIRST_TOKEN, 100_000], sent_s=69.0)
    assert [each.turn for each in noted.events] == [0, 1, 1, 2]


@pytest.mark.parametrize("rest", [[99, 5, 1], [EngineEventKind.CHUNK, 5]])
def test_engine_events_that_cannot_be_read_are_left_out(rest):
    noted = RequestTimeline()
    noted.add_engine([EngineEventKind.QUEUED, 0, 3, *rest], noted.began)
    noted.add_engine(rest, noted.began)
    assert [each.name for each in noted.events[1:]] == ["engine.queued"]
