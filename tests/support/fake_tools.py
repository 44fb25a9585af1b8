"""Tools of a provider that a test makes up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvarn.tools.types import OpenedTools, ToolCall, ToolContext, ToolDefinition, ToolResult


async def echo(context: ToolContext, call: ToolCall) -> ToolResult:
    return ToolResult(f"got {call.arguments}")


@dataclass
class FakeTool:
    name: str
    work: Callable[[ToolContext, ToolCall], Awaitable[ToolResult]] = echo
    needs_approval: bool = False
    item_type: str = "mcp_call"
    item_fields: Mapping[str, Any] = field(default_factory=lambda: {"server_label": "fakes"})
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition(self.name, "A tool of a test.", self.parameters)

    async def call(self, context: ToolContext, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        return await self.work(context, call)


@dataclass
class FakeProvider:
    tools: Sequence[FakeTool]
    items: Sequence[Mapping[str, Any]] = ()

    async def open(self, context: ToolContext, asked: Mapping[str, Any]) -> OpenedTools:
        return OpenedTools(self.tools, self.items)
