"""Blocks of tools that the server runs, in answers and as clients send them back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import ConfigDict, Field

from kvarn.wire.openai.common import RequestModel


class AnswerMcpToolUse(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_tool_use"):
    id: str
    name: str
    server_name: str
    input: dict[str, Any]


class AnswerMcpToolResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_tool_result"):
    tool_use_id: str
    is_error: bool
    content: list[dict[str, Any]]


class AnswerServerToolUse(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="server_tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class AnswerWebSearchResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_tool_result"):
    tool_use_id: str
    content: list[dict[str, Any]] | dict[str, Any]


class AnswerCodeResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="code_execution_tool_result"):
    tool_use_id: str
    content: dict[str, Any]


HostedAnswerBlock = (
    AnswerMcpToolUse | AnswerMcpToolResult | AnswerServerToolUse | AnswerWebSearchResult | AnswerCodeResult
)


class _Sent(RequestModel):
    model_config = ConfigDict(extra="ignore")


class HostedToolUse(_Sent):
    """A call that the server ran in an earlier turn."""

    type: Literal["mcp_tool_use", "server_tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    server_name: str | None = None

    @property
    def function(self) -> str:
        """The model's name of the tool."""
        return self.name if self.server_name is None else f"{self.server_name}__{self.name}"


class HostedToolResult(_Sent):
    type: Literal["mcp_tool_result", "web_search_tool_result", "code_execution_tool_result"]
    tool_use_id: str
    content: Any = None

    @property
    def text(self) -> str:
        content = self.content
        if isinstance(content, str):
            return content
        parts = content if isinstance(content, list) else [content]
        return "\n".join(_text(part) for part in parts if isinstance(part, dict))


def _text(part: dict[str, Any]) -> str:
    if part.get("type") == "web_search_result":
        return f"{part.get('title', '')} {part.get('url', '')}"
    known = ("text", "stdout", "stderr", "error_code")
    return "\n".join(str(part[name]) for name in known if part.get(name))


class McpToolConfiguration(_Sent):
    enabled: bool | None = None
    allowed_tools: list[str] | None = None


class McpServer(_Sent):
    """An MCP server that a request names."""

    type: Literal["url"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    url: str
    authorization_token: str | None = Field(None, repr=False)
    tool_configuration: McpToolConfiguration | None = None

    @property
    def entry(self) -> dict[str, Any] | None:
        """Entry of OpenAI's `tools` that means the same; None: it is turned off."""
        configuration = self.tool_configuration or McpToolConfiguration()
        if configuration.enabled is False:
            return None
        entry = {
            "type": "mcp",
            "server_label": self.name,
            "server_url": self.url,
            "authorization": self.authorization_token,
            "allowed_tools": configuration.allowed_tools,
            "require_approval": "never",
        }
        return {name: value for name, value in entry.items() if value is not None}
