"""Tools that run here, in chats: one answer, with what was run for it beside."""

from __future__ import annotations

from typing import Any

import pytest

from asking import CHAT, chat, code_of, events_of, prompt_of
from fake_tools import FakeProvider, FakeTool
from kvarn.store.models import StoredResponse
from scripted_answers import called

SUM: Any = {"type": "calculator"}
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture
def asked(scripted):
    scripted("Let me see. " + called("calculator", expression="6 * 7"), "It is 42.")
    return chat("6 * 7?", tools=[SUM])


def test_the_answer_is_that_of_the_last_turn_with_the_calls_beside(server, asked, sdk):
    answer = sdk.chat.completions.create(**asked)
    choice = answer.choices[0]
    assert choice.message.content == "Let me see.\n\nIt is 42." and choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    (run,) = choice.message.to_dict()["tool_executions"]
    assert (run["type"], run["name"], run["status"], run["output"]) == ("mcp_call", "calculator", "completed", "42")
    tokens = sum(len(request.prompt_token_ids) for request in server.chat.submitted)
    assert answer.usage is not None and answer.usage.prompt_tokens == tokens and "42" in prompt_of(server)
    sessions = {request.session for request in server.chat.submitted}
    assert len(sessions) == 1 and None not in sessions, "the engine keeps the KV while the tool runs"


def test_a_stream_has_the_same(asked, client):
    events = events_of(client.post(CHAT, json={**asked, "stream": True, "stream_options": {"include_usage": True}}))
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Let me see.\n\nIt is 42."
    (run,) = [run for delta in deltas for run in delta.get("tool_executions", ())]
    assert run["output"] == "42" and not any("tool_calls" in delta for delta in deltas)
    ends = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
    assert [end for end in ends if end] == ["stop"] and events[-1]["usage"]["completion_tokens"] > 20


def test_a_call_of_the_clients_function_is_handed_over(scripted, client):
    scripted(called("calculator", expression="1 + 1") + called("add", a=1))
    message = client.post(CHAT, json=chat("?", tools=[SUM, ADD])).json()["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in message["message"]["tool_calls"]] == ["add"]
    assert [run["name"] for run in message["message"]["tool_executions"]] == ["calculator"]


def test_a_tool_may_be_forced_and_a_batch_runs_them_too(server, scripted, client):
    scripted('{"expression": "2 + 2"}}\n</tool_call>', "Four.")
    made = client.post(CHAT, json=chat("?", tools=[SUM, ADD], tool_choice={"type": "calculator"})).json()
    assert made["choices"][0]["message"]["content"] == "Four."
    assert made["choices"][0]["message"]["tool_executions"][0]["output"] == "4"


def test_what_does_not_go_together_is_refused(client):
    assert code_of(client.post(CHAT, json=chat(tools=[SUM], n=2)))[0] == 400
    assert client.post(CHAT, json=chat(tools=[{"type": "custom", "custom": {"name": "x"}}])).status_code == 400
    choice = {"type": "clock"}
    refused = client.post(CHAT, json=chat(tools=[SUM], tool_choice=choice))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tool_choice"


def test_a_tool_that_is_not_served_is_ignored_with_a_warning(scripted, client):
    scripted("Hello.")
    answer = client.post(CHAT, json=chat(tools=[{"type": "web_search_preview"}]))
    assert answer.status_code == 200 and "web_search_preview" in answer.headers["x-kvarn-warning"]


def test_a_stored_chat_has_its_calls_and_no_secret(server, scripted, sdk, client, monkeypatch):
    monkeypatch.setitem(server.gateway.tools._providers, "mcp", FakeProvider([FakeTool("files__read")]))
    scripted(called("files__read", path="a"), "Read.")
    tool: Any = {"type": "mcp", "server_label": "files", "server_url": "https://x", "authorization": "hunter2"}
    made = sdk.chat.completions.create(**chat("?", tools=[tool], store=True))
    stored = client.get(f"{CHAT}/{made.id}").json()
    assert stored["choices"][0]["message"]["tool_executions"][0]["status"] == "completed"
    assert stored["tools"][0]["server_label"] == "files" and "hunter2" not in str(stored)


def test_a_response_neither_shows_nor_stores_a_secret(server, scripted, client, monkeypatch, wait_for):
    monkeypatch.setitem(server.gateway.tools._providers, "mcp", FakeProvider([FakeTool("files__read")]))
    scripted("Hello.")
    tool: Any = {"type": "mcp", "server_label": "files", "server_url": "https://x", "headers": {"x-key": "hunter2"}}
    for background in (False, True):
        body = {"model": "tiny", "input": "x", "tools": [tool], "background": background}
        made = client.post("/v1/responses", json=body).json()
        where = f"/v1/responses/{made['id']}"
        wait_for(lambda where=where: client.get(where).json()["status"] == "completed", "the response to end")

        async def read(name: str = made["id"]) -> str:
            async with server.gateway.store.reading() as session:
                row = await session.get(StoredResponse, name)
                return str([row.body, row.request])

        assert "files" in server.do(read()) and "hunter2" not in server.do(read()) + str(made)


def test_a_tool_that_waits_for_approval_is_refused(server, client, monkeypatch):
    waiting = FakeProvider([FakeTool("files__read", needs_approval=True)])
    monkeypatch.setitem(server.gateway.tools._providers, "mcp", waiting)
    refused = client.post(CHAT, json=chat(tools=[{"type": "mcp", "server_label": "files"}]))
    assert code_of(refused) == (400, "approval_needed")
