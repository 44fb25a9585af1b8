"""Sessions of coding agents: requests of the shapes they send at their default settings, with texts of our own.

`make clients` runs the agents themselves and keeps what they sent; docs/guides/coding_agents.md names them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from agent_requests import CLAUDE, DONE, OPENCODE, RESULT, SESSIONS, STREAMED, TOLD, Body
from asking import events_of, prompt_of


@dataclass
class Heard:
    """What a stream said: its text, and its calls with their ids."""

    text: str
    calls: list[tuple[str, str, Body]]
    end: str | None


def heard(path: str, answer: httpx.Response) -> Heard:
    events = events_of(answer)
    if path.startswith("/v1/messages"):
        return _from_messages(events)
    if path == "/v1/responses":
        return _from_response(events[-1])
    return _from_chat(events)


def _from_messages(events: list[Body]) -> Heard:
    deltas = [event["delta"] for event in events if "delta" in event]
    used = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    arguments = "".join(delta.get("partial_json", "") for delta in deltas)
    calls = [(each["id"], each["name"], json.loads(arguments)) for each in used if each["type"] == "tool_use"]
    return Heard("".join(delta.get("text", "") for delta in deltas), calls, deltas[-1]["stop_reason"])


def _from_response(last: Body) -> Heard:
    assert last["type"] == "response.completed"
    items = last["response"]["output"]
    calls = [
        (item["call_id"], item["name"], json.loads(item["arguments"]))
        for item in items
        if item["type"] == "function_call"
    ]
    text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
    return Heard(text, calls, last["response"]["status"])


def _from_chat(events: list[Body]) -> Heard:
    choices = [choice for event in events for choice in event["choices"]]
    parts = [part for choice in choices for part in choice["delta"].get("tool_calls") or ()]
    arguments = "".join(part["function"].get("arguments", "") for part in parts)
    calls = [(part["id"], part["function"]["name"], json.loads(arguments)) for part in parts if part.get("id")]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert events[-1]["usage"]["total_tokens"] > 0 and not events[-1]["choices"]
    return Heard(text, calls, choices[-1]["finish_reason"])


@pytest.fixture
def roomy(server: Any) -> Any:
    """The shared gateway, with a context that holds an agent's prompt."""
    server.widen(32_768)
    return server


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_an_agents_session(session, roomy, client, answering):
    call = json.dumps({"name": session.tool, "arguments": session.arguments})
    answering(f"<tool_call>\n{call}\n</tool_call>")
    body = {"model": "tiny", **session.first}
    answer = client.post(session.path, json=body, headers=session.headers)
    first = heard(session.path, answer)
    ((call_id, name, arguments),) = first.calls
    assert (name, arguments, first.text) == (session.tool, session.arguments, "")
    assert first.end in ("tool_use", "tool_calls", "completed")
    prompt = prompt_of(roomy)
    assert all(text in prompt for text in (TOLD, session.tool, *session.shown)), prompt
    assert answer.headers.get("x-kvarn-ignored") == session.ignored

    answering(DONE)
    body[session.history] = [*body[session.history], *session.second(call_id)]
    second = heard(session.path, client.post(session.path, json=body, headers=session.headers))
    assert (second.text, second.calls) == (DONE, []) and second.end in ("end_turn", "stop", "completed")
    assert RESULT in prompt_of(roomy) and prompt_of(roomy).index(TOLD) < prompt_of(roomy).index(RESULT)


def test_a_picture_that_claude_code_has_read_does_not_end_its_session(roomy, client):
    body = {"model": "tiny", **CLAUDE.first}
    turn = CLAUDE.second("toolu_1")
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    turn[1]["content"][0]["content"] = [picture, {"type": "text", "text": RESULT}]
    answer = client.post(CLAUDE.path, json=body | {"messages": [*body["messages"], *turn]}, headers=CLAUDE.headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-kvarn-ignored"] == "tool_result.content.image, thinking"
    assert f"[image: this model reads text only]\n{RESULT}" in prompt_of(roomy)


def test_sessions_of_claude_code_share_a_prefix(roomy, client):
    assert client.post(CLAUDE.path, json={"model": "tiny", **CLAUDE.first}).status_code == 200
    assert prompt_of(roomy).partition("<|user|>")[0].endswith("<|system|>You are an agent.\nUse the tools.")


def test_requests_beside_a_session(roomy, client, answering):
    answering("A title")
    assert client.head("/").status_code == 200  # Claude Code, before its first request
    counted = {"model": "tiny", "messages": [{"role": "user", "content": "Be brief."}], "tools": []}
    answer = client.post("/v1/messages/count_tokens?beta=true", json=counted, headers=CLAUDE.headers)
    assert answer.status_code == 200 and answer.json()["input_tokens"] > 0
    title = [
        {"role": role, "content": text} for role, text in (("system", "Titles."), ("user", "For:"), ("user", TOLD))
    ]
    opencodes = {"model": "tiny", "max_tokens": 8192, "messages": title, **STREAMED}
    assert heard(OPENCODE.path, client.post(OPENCODE.path, json=opencodes)).text == "A title"
    shown = [("system", "Edit files."), ("user", "An example."), ("assistant", "Ok."), ("user", TOLD)]
    aiders = {
        "model": "tiny",
        "messages": [{"role": role, "content": text} for role, text in shown],
        "stream": True,
        "temperature": 0,
    }
    answer = client.post("/v1/chat/completions", json=aiders)
    assert answer.status_code == 200 and "data: [DONE]" in answer.text
