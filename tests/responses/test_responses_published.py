"""Every answer and every event is what OpenAI's published document says."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from published_schemas import check

ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
CALL = 'Well. <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'

ASKED: list[dict[str, Any]] = [
    {"input": "x"},
    {"input": "x", "tools": [ADD], "instructions": "i", "metadata": {"a": "b"}, "user": "u", "tool_choice": "auto"},
    {"input": [{"role": "user", "content": "x"}], "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    {"input": "x", "max_output_tokens": 16, "temperature": 0, "top_p": 0.5, "truncation": "auto", "store": False},
    {"input": "x", "prompt_cache_key": "k", "safety_identifier": "s", "max_tool_calls": 1, "service_tier": "auto"},
    {"input": "x", "conversation": "made"},
]


@pytest.mark.parametrize("asked", ASKED)
def test_responses_and_their_events(client, answering, asked):
    answering(CALL)
    if "conversation" in asked:
        asked = {**asked, "conversation": client.post("/v1/conversations", json={}).json()["id"]}
    body = {"model": "tiny", **asked}
    made = client.post("/v1/responses", json=body).json()
    check("Response", made)
    if made["store"]:
        check("Response", client.get(f"/v1/responses/{made['id']}").json())
    _check_events(client.post("/v1/responses", json={**body, "stream": True}).text)
    counted = {name: value for name, value in asked.items() if name in ("input", "instructions", "tools")}
    check("TokenCountsResource", client.post("/v1/responses/input_tokens", json=counted).json())


def test_failed_and_background_ones(server, client):
    server.chat.lose_after = 3
    _check_events(client.post("/v1/responses", json={"model": "tiny", "input": "x", "stream": True}).text)
    server.chat.lose_after = None
    queued = client.post("/v1/responses", json={"model": "tiny", "input": "x", "background": True}).json()
    assert queued["status"] == "queued"
    check("Response", queued)
    _check_events(client.get(f"/v1/responses/{queued['id']}?stream=true").text)
    check("Response", client.post(f"/v1/responses/{queued['id']}/cancel").json())


def test_lists_of_items_and_conversations(client, answering):
    answering(CALL)
    created = client.post(
        "/v1/conversations", json={"items": [{"role": "system", "content": "s"}], "metadata": {"a": "b"}}
    ).json()
    check("ConversationResource", created)
    where = f"/v1/conversations/{created['id']}"
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"role": "assistant", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "reasoning", "id": "rs_9", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    ]
    check("ConversationItemList", client.post(f"{where}/items", json={"items": items}).json())
    made = client.post(
        "/v1/responses", json={"model": "tiny", "input": "x", "conversation": created["id"], "tools": [ADD]}
    ).json()
    listed = client.get(f"{where}/items").json()
    assert len(listed["data"]) == 1 + 5 + 1 + 2
    check("ConversationItemList", listed)
    check("ConversationItem", client.get(f"{where}/items/{listed['data'][0]['id']}").json())
    check("ConversationResource", client.delete(f"{where}/items/{listed['data'][0]['id']}").json())
    check("ConversationResource", client.post(where, json={"metadata": {}}).json())
    check("ResponseItemList", client.get(f"/v1/responses/{made['id']}/input_items").json())
    given = [{**item} for item in items]
    kept = client.post("/v1/responses", json={"model": "tiny", "input": given}).json()
    check("ResponseItemList", client.get(f"/v1/responses/{kept['id']}/input_items").json())
    check("DeletedConversationResource", client.delete(where).json())
    check("ConversationItemList", client.get(f"{_empty(client)}/items").json())
    check("ErrorResponse", client.get(where).json())


def _empty(client: httpx.Client) -> str:
    return f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"


def _check_events(text: str) -> None:
    events = [json.loads(block.partition("\ndata: ")[2]) for block in text.split("\n\n") if block]
    assert len(events) > 3
    for event in events:
        check("ResponseStreamEvent", event)
