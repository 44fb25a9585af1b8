"""Sessions of clients: every API's and every agent's way to name one reaches the engine as a digest and numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from asking import CHAT as PATH
from asking import HELLO
from kvarn.answers.sessions import (
    NO_HINTS,
    SessionHints,
    hints_of_chat,
    hints_of_headers,
    hints_of_messages,
    session_id,
)
from kvarn.store.owner import ANYBODY, Owner
from kvarn.wire.anthropic.messages import MessagesRequest
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.parse import validate
from kvarn.wire.sessions import SessionEvent, SessionTurn

CHAT: dict[str, Any] = {"model": "tiny", "messages": HELLO}
AGENT = {
    "session_id": "worker",
    "parent_session_id": "chief",
    "cache_control": {"type": "ephemeral", "ttl": 90},
    "context_management": {"edits": [{"type": "evict"}]},
}
CLAUDE_CODE = json.dumps({"device_id": "d", "session_id": "from-json"})
MARKED = [{"type": "text", "text": "hej", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, NO_HINTS),
        ({"x-kvarn-session": "a", "x-session-id": "b"}, SessionHints("a")),
        ({"x-session-id": "b"}, SessionHints("b")),
        ({"session-id": "c"}, SessionHints("c")),
        ({"x-session-affinity": "d"}, SessionHints("d")),
        ({"x-kvarn-session": "a", "x-kvarn-parent-session": "p"}, SessionHints("a", "p")),
        ({"x-kvarn-session": "a", "x-kvarn-session-end": "true"}, SessionHints("a", is_last=True)),
        ({"x-kvarn-session": "a" * 257}, NO_HINTS),
    ],
)
def test_headers(headers: dict[str, str], found: SessionHints):
    assert hints_of_headers([(name.encode(), value.encode()) for name, value in headers.items()]) == found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, NO_HINTS),
        ({"prompt_cache_key": "key"}, SessionHints("key")),
        ({"prompt_cache_retention": "24h"}, SessionHints(keep_s=86400.0)),
        ({"prompt_cache_retention": "in_memory"}, SessionHints(keep_s=300.0)),
        ({"prompt_cache_retention": "for ever"}, NO_HINTS),
        ({"prompt_cache_options": {"ttl": "30m"}}, SessionHints(keep_s=1800.0)),
        ({"prompt_cache_options": {"ttl": 7}}, NO_HINTS),
        ({"agent_hint": AGENT}, SessionHints("worker", "chief", 90.0, is_last=True)),
        ({"agent_hint": AGENT, "prompt_cache_key": "key"}, SessionHints("worker", "chief", 90.0, is_last=True)),
        ({"retention_directives": [{"start": 0, "priority": 80, "duration": 12.5}]}, SessionHints(keep_s=12.5)),
        ({"retention_directives": [{"start": 0, "priority": 0, "duration": 12.5}]}, NO_HINTS),
        ({"messages": [{"role": "user", "content": MARKED}]}, SessionHints(keep_s=3600.0)),
    ],
)
def test_fields_of_a_chat(fields: dict[str, Any], found: SessionHints):
    assert hints_of_chat(validate(ChatCompletionRequest, {**CHAT, **fields})) == found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, NO_HINTS),
        ({"metadata": {"user_id": CLAUDE_CODE}}, SessionHints("from-json")),
        ({"metadata": {"user_id": "user_ab_account__session_0123abcd-4567"}}, SessionHints("0123abcd-4567")),
        ({"metadata": {"user_id": "{" * 2000}}, NO_HINTS),
        ({"metadata": {"user_id": "ada"}}, NO_HINTS),
        ({"cache_control": {"type": "ephemeral"}}, SessionHints(keep_s=300.0)),
        ({"system": MARKED}, SessionHints(keep_s=3600.0)),
        ({"messages": [{"role": "user", "content": MARKED}]}, SessionHints(keep_s=3600.0)),
        ({"agent_hint": AGENT}, SessionHints("worker", "chief", 90.0, is_last=True)),
    ],
)
def test_fields_of_a_message(fields: dict[str, Any], found: SessionHints):
    asked = {"model": "tiny", "max_tokens": 9, "messages": HELLO, **fields}
    assert hints_of_messages(validate(MessagesRequest, asked)) == found


def session_of(server: Any) -> SessionTurn:
    session = server.chat.submitted[-1].session
    assert session is not None
    return session


def test_every_api_names_the_same_session(server, client):
    message = {"model": "tiny", "max_tokens": 9, "messages": HELLO}
    ways: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("chat/completions", CHAT, {"x-session-id": "s"}),
        ("chat/completions", {**CHAT, "prompt_cache_key": "s"}, {}),
        ("chat/completions", {**CHAT, "agent_hint": {"session_id": "s"}}, {}),
        ("completions", {"model": "tiny", "prompt": "hej", "agent_hint": {"session_id": "s"}}, {}),
        ("responses", {"model": "tiny", "input": "hej", "store": False, "prompt_cache_key": "s"}, {}),
        ("responses", {"model": "tiny", "input": "hej", "prompt_cache_key": "s"}, {}),
        ("responses", {"model": "tiny", "input": "hej", "store": False, "agent_hint": {"session_id": "s"}}, {}),
        ("messages", {**message, "metadata": {"user_id": json.dumps({"session_id": "s"})}}, {}),
        ("messages", message, {"x-kvarn-session": "s"}),
    ]
    found = set()
    for path, body, headers in ways:
        answer = client.post(f"/v1/{path}", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        found.add(session_of(server).id)
    assert len(found) == 1 and len(found.pop()) == 16


def test_a_request_that_names_no_session_has_none(server, client):
    client.post(PATH, json=CHAT)
    assert server.chat.submitted[-1].session is None


def test_hints_are_bounded(server, client):
    client.post(PATH, json={**CHAT, "prompt_cache_key": "s", "prompt_cache_retention": "24h"})
    assert session_of(server).keep_s == 3600.0


def test_helpers_belong_to_the_tree_of_who_started_them(server, client):
    client.post(PATH, json=CHAT, headers={"x-kvarn-session": "chief"})
    chief = session_of(server)
    client.post(PATH, json=CHAT, headers={"x-kvarn-session": "worker", "x-kvarn-parent-session": "chief"})
    worker = session_of(server)
    assert worker.tree == chief.id and worker.id != chief.id


def test_a_chain_of_responses_is_a_session(server, sdk):
    first = sdk.responses.create(model="tiny", input="hej")
    began = session_of(server).id
    second = sdk.responses.create(model="tiny", input="and?", previous_response_id=first.id)
    assert session_of(server).id == began
    sdk.responses.create(model="tiny", input="so?", previous_response_id=second.id)
    assert session_of(server).id == began
    sdk.responses.create(model="tiny", input="hej")
    assert session_of(server).id != began


def test_projects_do_not_share_sessions():
    owners = [Owner("red", "a"), Owner("red", "b"), Owner("blue", "a")]
    assert len({session_id(replace(ANYBODY, owner=owner), "s") for owner in owners}) == 3


def test_the_engine_hears_that_a_turn_has_called_tools(server, answering, client):
    tools = [{"type": "function", "function": {"name": "add"}}]
    answering('<tool_call>{"name": "add", "arguments": {}}</tool_call>')
    before = len(server.chat.session_news)
    client.post(PATH, json={**CHAT, "tools": tools}, headers={"x-session-id": "s"})
    news = server.chat.session_news[-1]
    submitted = server.chat.submitted[-1]
    assert (news.event, news.session) == (SessionEvent.CALLED_TOOLS, submitted.session.id)
    assert news.turn == submitted.request_id
    answering("no call")
    client.post(PATH, json={**CHAT, "tools": tools}, headers={"x-session-id": "s"})
    assert len(server.chat.session_news) == before + 1


def test_a_client_announces_a_turn_and_gives_a_session_up(server, client):
    client.post(PATH, json=CHAT, headers={"x-session-id": "a b"})
    announced = client.post("/v1/sessions/a%20b/prefetch")
    assert announced.json() == {"id": "a b", "object": "session.prefetch"}
    assert client.delete("/v1/sessions/a%20b").json() == {"id": "a b", "object": "session.deleted", "deleted": True}
    news = server.chat.session_news[-2:]
    assert [each.event for each in news] == [SessionEvent.RETURNS, SessionEvent.ENDED]
    assert {each.session for each in news} == {session_of(server).id}


def test_an_id_that_no_request_could_name_is_refused(client):
    answer = client.post(f"/v1/sessions/{'s' * 257}/prefetch")
    assert answer.status_code == 400 and "session" in answer.json()["error"]["message"]
