"""Requests of the shapes that Claude Code sends at its default settings, written by us, and what each field does."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from asking import HELLO, events_of, prompt_of
from fake_replica import answer_text
from kvarn.answers.messages import operation
from kvarn.answers.messages.context_edits import CLEARED, apply_edit
from kvarn.answers.messages.request import chat_request
from kvarn.text.errors import ChatTemplateError
from kvarn.wire.anthropic.messages import MessagesRequest
from lazy_modules import LazyModule

anthropic = LazyModule("anthropic")

ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 200, "messages": HELLO}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
BASH = {"type": "bash_20250124", "name": "bash", **CACHED}
EDITOR = {"type": "text_editor_20991231", "name": "str_replace_based_edit_tool", "max_characters": 100}
MEMORY = {"type": "memory_20250818", "name": "memory"}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
READ = {"name": "Read", "description": "Read a file", "input_schema": {"type": "object", "properties": {}}}
KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}

FIRST_TURN: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 32000,
    "stream": True,
    "temperature": 1,
    "system": [{"type": "text", "text": "You are an agent.", **CACHED}, {"type": "text", "text": "Be brief."}],
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Date: today"}, {"type": "text", "text": "Hej", **CACHED}],
        },
        {"role": "system", "content": [{"type": "text", "text": "Tools may be slow.", "citations": []}]},
    ],
    "tools": [{**READ, "eager_input_streaming": True, "defer_loading": True, "input_examples": []}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "session_id": "s" * 36, "account": "a" * 200})},
    "thinking": {"type": "adaptive", "display": "summarized", "block_binding": {}},
    "context_management": KEEP_ALL,
    "output_config": {"effort": "high", "task_budget": None},
    "speed": "standard",
    "diagnostics": {"previous_message_id": None},
    "mcp_servers": [],
    "container": None,
    "service_tier": "auto",
}
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27", "x-api-key": "none"}


def test_the_first_turn_is_answered(server, client):
    answer = client.post("/v1/messages?beta=true", json=FIRST_TURN, headers=HEADERS)
    events = events_of(answer)
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    assert events[-2]["context_management"] == {"applied_edits": []}
    prompt = prompt_of(server)
    assert prompt.endswith("<|user|>Date: today\nHej<|system|>Tools may be slow.<|assistant|>")
    assert "<|system|>You are an agent.\nBe brief.<|user|>" in prompt and "Read a file" in prompt


def test_its_tokens_are_counted_from_the_same_fields(client):
    counted = client.post("/v1/messages/count_tokens?beta=true", json=FIRST_TURN, headers=HEADERS)
    message = client.post("/v1/messages?beta=true", json=FIRST_TURN | {"stream": False}, headers=HEADERS)
    assert counted.status_code == message.status_code == 200, counted.text
    usage, count = message.json()["usage"], counted.json()
    assert count["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert count["context_management"] == {"original_input_tokens": count["input_tokens"]}


def test_typed_tools_of_the_client_are_functions_for_the_model(server, answering, claude):
    answering('<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>')
    tools: Any = [BASH]
    message = claude.beta.messages.create(tools=tools, **ASK)
    (call,) = message.content
    assert call.type == "tool_use" and (call.name, call.input) == ("bash", {"command": "ls"})
    assert message.stop_reason == "tool_use" and '"command"' in prompt_of(server)


@pytest.mark.parametrize(
    ("tool", "commands"),
    [
        (EDITOR, ["view", "create", "str_replace", "insert"]),
        (MEMORY, ["view", "create", "str_replace", "insert", "delete", "rename"]),
    ],
)
def test_a_typed_tool_has_the_inputs_that_are_documented_whatever_its_version(tool, commands):
    (shown,) = chat_request(MessagesRequest.model_validate(ASK | {"tools": [tool]})).active_tools or ()
    schema = shown["function"]["parameters"]
    assert shown["function"]["name"] == tool["name"] and schema["properties"]["command"]["enum"] == commands
    jsonschema_rs.validate(schema, {"command": "view", "path": "/memories", "view_range": [1, -1]})
    jsonschema_rs.validate(schema, {"command": "insert", "path": "a", "insert_line": 0, "insert_text": "b"})


def test_tools_that_only_a_server_runs_are_passed_over_with_a_warning(server, client):
    answer = client.post("/v1/messages", json={**ASK, "tools": [READ, SEARCH]})
    assert answer.status_code == 200 and answer.headers["x-kvarn-ignored"] == "tools[1]"
    told = "ignored the tool 'tools[1]', this server runs none of type 'web_search_20250305'"
    assert answer.headers["x-kvarn-warning"] == told
    assert "web_search" not in prompt_of(server)
    assert client.post("/v1/messages", json={**ASK, "tools": [SEARCH]}).status_code == 200
    forced = {**ASK, "tools": [READ, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}
    refused = client.post("/v1/messages", json=forced)
    assert refused.status_code == 400 and "'web_search_20250305'" in refused.json()["error"]["message"]


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_an_answers_format_is_enforced(server, client, place):
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"const": 1}}}}
    given = {"output_config": {"format": form}} if place == "output_config" else {"output_format": form}
    server.chat.answer = lambda request, index: answer_text('{"a": 1}')
    assert client.post("/v1/messages", json={**ASK, **given}).status_code == 200
    assert "const" in str(server.chat.submitted[-1].grammar)


def test_an_effort_that_the_model_does_not_know_is_told(client):
    answer = client.post("/v1/messages", json={**ASK, "output_config": {"effort": "max"}})
    assert answer.status_code == 200 and "effort" in answer.headers["x-kvarn-warning"]


def test_system_messages_may_stand_anywhere_and_be_for_one_turn(server, client):
    once = {"role": "system", "content": "Once.", "clear_at": "next_user_message"}
    said = [*HELLO, once, {"role": "assistant", "content": "Hi"}, *HELLO, {"role": "system", "content": []}]
    assert client.post("/v1/messages", json={**ASK, "messages": said[:2]}).status_code == 200
    assert prompt_of(server) == "<bos><|user|>Hej<|system|>Once.<|assistant|>"
    assert client.post("/v1/messages", json={**ASK, "messages": said}).status_code == 200
    assert prompt_of(server) == "<bos><|user|>Hej<|assistant|>Hi<|user|>Hej<|assistant|>"


def test_a_template_that_knows_instructions_at_the_beginning_only_gets_them_as_the_users(server, client, monkeypatch):
    start = operation.start_chat

    async def strict_start(serving: Any, record: Any, chat: Any) -> Any:
        if any(message.role == "system" for message in chat.messages[1:]):
            raise ChatTemplateError("The system message must be the first.")
        return await start(serving, record, chat)

    monkeypatch.setattr(operation, "start_chat", strict_start)
    said = [*HELLO, {"role": "system", "content": "Hurry."}]
    answer = client.post("/v1/messages", json={**ASK, "messages": said})
    assert answer.status_code == 200 and "system messages" in answer.headers["x-kvarn-warning"]
    assert prompt_of(server) == "<bos><|user|>Hej\nHurry.<|assistant|>"


def turn(number: int) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"path": f"file {number}"}}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"result {number} " * 4}
    thought = {"type": "thinking", "thinking": f"thought {number}", "signature": "s"}
    return [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]


def test_old_results_are_cleared(server, client):
    said = [*HELLO, *turn(1), *turn(2), *turn(3)]
    uses = lambda count: {"type": "tool_uses", "value": count}  # noqa: E731
    edit = {"type": "clear_tool_uses_20250919", "trigger": uses(3), "keep": uses(1), "clear_tool_inputs": True}
    asked = {**ASK, "messages": said, "max_tokens": 5, "context_management": {"edits": [edit]}}
    answer = client.post("/v1/messages", json=asked)
    assert answer.status_code == 200, answer.text
    prompt = prompt_of(server)
    assert prompt.count(CLEARED) == 2 and "result 3" in prompt and "result 2" not in prompt
    managed = MessagesRequest.model_validate(asked)
    assert managed.context_management is not None and managed.context_management.edits
    cleared = apply_edit(managed.context_management.edits[0], managed.messages, 0).messages
    chat = chat_request(managed.model_copy(update={"messages": cleared}))
    calls = [call["function"] for message in chat.plain_messages for call in message.get("tool_calls") or ()]
    assert [call["arguments"] for call in calls] == ["{}", "{}", '{"path":"file 3"}']
    (applied,) = answer.json()["context_management"]["applied_edits"]
    assert (applied["type"], applied["cleared_tool_uses"]) == ("clear_tool_uses_20250919", 2)
    counted = client.post("/v1/messages/count_tokens", json=asked).json()
    shortened = counted["context_management"]["original_input_tokens"] - counted["input_tokens"]
    assert shortened == applied["cleared_input_tokens"]
    for changes in (
        {"trigger": uses(4)},
        {"trigger": {"type": "input_tokens", "value": 100_000}},
        {"exclude_tools": ["Read"]},
        {"clear_at_least": {"type": "input_tokens", "value": 10_000}},
    ):
        asked["context_management"] = {"edits": [edit | changes]}
        answer = client.post("/v1/messages", json=asked)
        assert answer.json()["context_management"] == {"applied_edits": []}
        assert CLEARED not in prompt_of(server)


def test_old_thinking_is_cleared(server, client):
    said = [*HELLO, *turn(1), *turn(2)]
    for keep, cleared in ((None, 1), ({"type": "thinking_turns", "value": 2}, 0), ({"type": "all"}, 0)):
        edits = [{"type": "clear_thinking_20251015", "keep": keep}]
        answer = client.post("/v1/messages", json={**ASK, "messages": said, "context_management": {"edits": edits}})
        applied = answer.json()["context_management"]["applied_edits"]
        assert [each["cleared_thinking_turns"] for each in applied] == [cleared] * bool(cleared)


def test_an_edit_of_another_type_is_passed_over_with_a_warning(client):
    managed = {"edits": [{"type": "compact_20260112", "instructions": "Shorten."}]}
    answer = client.post("/v1/messages", json={**ASK, "context_management": managed})
    assert answer.status_code == 200 and answer.headers["x-kvarn-ignored"] == "context_management.edits[0]"


@pytest.mark.parametrize(
    "empty",
    [
        *({name: []} for name in ("system", "tools", "stop_sequences", "mcp_servers", "fallbacks")),
        *({name: {}} for name in ("metadata", "thinking", "tool_choice", "output_config", "context_management")),
        *({name: {}} for name in ("cache_control", "container", "diagnostics", "output_format")),
        {"system": "", "service_tier": "", "speed": "", "inference_geo": ""},
        {"context_management": {"edits": []}},
        {"messages": [*HELLO, {"role": "assistant", "content": []}, *HELLO]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]},
    ],
    ids=str,
)
def test_what_is_empty_asks_for_nothing(client, empty):
    answer = client.post("/v1/messages", json={**ASK, **empty})
    assert answer.status_code == 200, answer.text
    assert "x-kvarn-warning" not in answer.headers
