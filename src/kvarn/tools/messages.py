"""Anthropic's messages whose tools run here: web search, code execution and MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.context import ServingContext
from kvarn.answers.messages.operation import MessageRun, start_message
from kvarn.answers.record import RequestRecord
from kvarn.catalog.client_left import cancel_with_client
from kvarn.tools.chat import answer_deltas, check_no_approval, loop_of
from kvarn.tools.registry import OfferedTools, ToolsContext
from kvarn.wire.anthropic.messages import MessagesRequest
from kvarn.wire.anthropic.tools import ServerTool
from kvarn.wire.openai.chat.request import ChatCompletionRequest, Tool

_CODE = {"type": "code_interpreter", "container": {"type": "auto"}}


async def start_tool_message(serving: ToolsContext, record: RequestRecord, request: MessagesRequest) -> MessageRun:
    """Begin the answer to a request, some of whose tools may run here. Raises as `start_message` does, and as the
    providers of its tools."""
    entries = _entries(request)
    if not entries:
        return await start_message(serving, record, request)
    taken = {tool.name: "a tool of yours" for tool in request.tools or () if not isinstance(tool, ServerTool)}
    opening = serving.tools.open(serving.tools.context(serving, record), entries, taken)
    offered = await cancel_with_client(opening, record.reply.client_left)
    check_no_approval(offered, "tools", "ask `/v1/responses`, which can")

    async def begin(_: ServingContext, record: RequestRecord, chat: ChatCompletionRequest) -> ChatRun:
        loop = loop_of(serving, record, chat, offered)
        run = await loop.start()
        return replace(run, request=chat, deltas=answer_deltas(loop, between=""), usage=lambda: loop.usage)

    functions = [Tool.model_validate(each) for each in _wanted(offered, request).chat_tools]
    return await start_message(serving, record, request, functions=functions, begin=begin)


def _entries(request: MessagesRequest) -> list[tuple[str, Mapping[str, Any]]]:
    """The request's tools that may run here, in OpenAI's words, with their places."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for number, tool in enumerate(request.tools or ()):
        where = f"tools[{number}]"
        if not isinstance(tool, ServerTool):
            continue
        if tool.family == "web_search":
            domains = {name: value for name, value in tool.fields.items() if name.endswith("_domains") and value}
            found.append((where, {"type": tool.type, "filters": domains} if domains else {"type": tool.type}))
        elif tool.family == "code_execution":
            found.append((where, _CODE))
    for number, server in enumerate(request.mcp_servers or ()):
        if server.entry is not None:
            found.append((f"mcp_servers[{number}]", server.entry))
    return found


def _wanted(offered: OfferedTools, request: MessagesRequest) -> OfferedTools:
    """The tools of MCP servers that the request's toolsets do not turn off."""
    toolsets = {
        str(tool.fields.get("mcp_server_name")): tool.fields
        for tool in request.tools or ()
        if isinstance(tool, ServerTool) and tool.type == "mcp_toolset"
    }

    def is_on(label: str, name: str) -> bool:
        fields = toolsets.get(label) or {}
        default = (fields.get("default_config") or {}).get("enabled", True)
        return bool((fields.get("configs") or {}).get(name, {}).get("enabled", default))

    kept = {
        name: each
        for name, each in offered.by_name.items()
        if not each.label or is_on(each.label, str(each.tool.item_fields.get("name")))
    }
    return OfferedTools(kept, offered.items)
