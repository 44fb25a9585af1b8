"""Anthropic's server tools and MCP servers run here, and its SDK reads what comes of them."""

from __future__ import annotations

from typing import Any

import pytest

from asking import events_of, prompt_of
from fake_tools import FakeProvider, FakeTool
from kvarn.tools.types import ToolCall, ToolContext, ToolResult
from scripted_answers import called

SERVER: Any = {"type": "url", "name": "files", "url": "https://files.example/mcp", "authorization_token": "t"}
ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 500, "messages": [{"role": "user", "content": "Hej"}]}
SEARCH: Any = {"type": "web_search_20250305", "name": "web_search"}
CODE: Any = {"type": "code_execution_20250825", "name": "code_execution"}


async def search(context: ToolContext, call: ToolCall) -> ToolResult:
    action = {"type": "search", "query": "kvarn", "sources": [{"type": "url", "url": "https://k", "title": "K"}]}
    return ToolResult("Found K.", item={"action": action})


async def run(context: ToolContext, call: ToolCall) -> ToolResult:
    return ToolResult("3", item={"outputs": [{"type": "logs", "logs": "3\n"}]})


@pytest.fixture(autouse=True)
def tools(server, monkeypatch) -> dict[str, FakeTool]:
    fields = {"server_label": "files", "name": "read"}
    made = {
        "mcp": FakeTool("files__read", item_fields=fields),
        "web_search": FakeTool("web_search", search, item_type="web_search_call", item_fields={}),
        "code_interpreter": FakeTool("python", run, item_type="code_interpreter_call", item_fields={}),
    }
    for kind, tool in made.items():
        monkeypatch.setitem(server.gateway.tools._providers, kind, FakeProvider([tool]))
    return made


def test_an_mcp_servers_tool_is_a_block_and_its_result_another(server, scripted, claude, tools):
    scripted("Reading." + called("files__read", path="a"), "It says a.")
    made = claude.beta.messages.create(**ASK, mcp_servers=[SERVER])
    kinds = [block.type for block in made.content]
    assert kinds == ["text", "mcp_tool_use", "mcp_tool_result", "text"] and made.stop_reason == "end_turn"
    use, result = made.content[1:3]
    assert (use.server_name, use.name, use.input) == ("files", "read", {"path": "a"})
    assert result.tool_use_id == use.id and not result.is_error and "got" in result.content[0].text
    scripted("Yes.")
    said = [*ASK["messages"], {"role": "assistant", "content": made.model_dump()["content"]}]
    claude.beta.messages.create(**{**ASK, "messages": [*said, {"role": "user", "content": "Sure?"}]})
    assert (
        prompt_of(server).index("Reading.") < prompt_of(server).index("got {") < prompt_of(server).index("It says a.")
    )


def test_a_stream_has_the_blocks_whole(scripted, client, claude):
    scripted(called("files__read", path="a"), "It says a.")
    events = events_of(client.post("/v1/messages", json={**ASK, "mcp_servers": [SERVER], "stream": True}))
    blocks = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert blocks == ["mcp_tool_use", "mcp_tool_result", "text"]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]
    with claude.beta.messages.stream(**ASK, mcp_servers=[SERVER]) as stream:
        assert stream.get_final_message().content[-1].text == "It says a."


def test_a_toolset_may_turn_tools_off(server, scripted, client):
    scripted("Hello.")
    toolset = {"type": "mcp_toolset", "mcp_server_name": "files", "configs": {"read": {"enabled": False}}}
    client.post("/v1/messages", json={**ASK, "mcp_servers": [SERVER], "tools": [toolset]}).raise_for_status()
    assert "files__read" not in prompt_of(server)


def test_web_search_and_code_execution_are_server_tools(scripted, claude):
    scripted(called("web_search", query="kvarn"), called("python", code="1 + 2"), "Three.")
    made = claude.beta.messages.create(**ASK, tools=[SEARCH, CODE])
    search_use, found, code_use, ran, text = made.content
    assert (search_use.type, search_use.name, search_use.input) == ("server_tool_use", "web_search", {"query": "kvarn"})
    assert found.type == "web_search_tool_result" and found.content[0].url == "https://k"
    assert code_use.name == "code_execution" and code_use.input == {"code": "1 + 2"}
    assert ran.type == "code_execution_tool_result" and ran.content.stdout == "3\n" and text.text == "Three."
    assert made.usage.server_tool_use.web_search_requests == 1


def test_a_server_tool_may_be_forced(scripted, claude, tools):
    query = {"query": {"type": "string"}}
    tools["web_search"].parameters = {"type": "object", "properties": query, "required": ["query"]}
    scripted('{"query": "x"}}\n</tool_call>', "Found.")
    choice: Any = {"type": "tool", "name": "web_search"}
    made = claude.beta.messages.create(**ASK, tools=[SEARCH], tool_choice=choice)
    assert [block.type for block in made.content] == ["server_tool_use", "web_search_tool_result", "text"]


def test_calls_that_need_approval_are_refused_here(client, tools):
    tools["mcp"].needs_approval = True
    refused = client.post("/v1/messages", json={**ASK, "mcp_servers": [SERVER]})
    assert refused.status_code == 400 and "/v1/responses" in refused.json()["error"]["message"]
