"""A tool that is one function of this process, which the model calls by the name of its type."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvarn.answers.chat.tool_calls import INVALID, arguments_object
from kvarn.store.owner import Owner
from kvarn.tools.execution import failed
from kvarn.tools.results import completed
from kvarn.tools.types import OpenedTools, ToolCall, ToolContext, ToolDefinition, ToolResult
from kvarn.wire.openai.errors import ApiError

SERVER = "kvarn"
"""The label under which calls of these tools stand in a response: its items are those of an MCP server."""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """Both the tool and its provider: there is nothing to open."""

    definition: ToolDefinition
    function: Callable[[Mapping[str, Any]], Awaitable[ToolResult]]
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run here; None: it can."""
    item_type: str = "mcp_call"
    needs_approval: bool = False

    @property
    def item_fields(self) -> Mapping[str, Any]:
        return {"server_label": SERVER, "name": self.definition.name}

    async def open(self, context: ToolContext, asked: Mapping[str, Any]) -> OpenedTools:
        if (why := self.missing()) is not None:
            raise ApiError(400, why, code="tool_not_installed", param="tools")
        return OpenedTools([self])

    async def problem(self, owner: Owner) -> str | None:
        return self.missing()

    async def call(self, context: ToolContext, call: ToolCall) -> ToolResult:
        arguments = arguments_object(call.arguments)
        if INVALID in arguments:
            return failed("The arguments are no JSON object.")
        result = await self.function(arguments)
        if result.error is not None:
            return result
        return completed(result.output, context.max_result_bytes, self.definition.name)
