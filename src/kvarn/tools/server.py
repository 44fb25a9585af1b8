"""A server whose tools models may use: registered by a project, named by the operator, or named by one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvarn.config.tool_servers import ToolServerConfig, ToolServerKind

Approval = Literal["always", "never"]
_SHORTEST_SECRET = 8
"""Characters below which a value may be part of any text."""


@dataclass(frozen=True, slots=True)
class ToolServer:
    label: str
    kind: ToolServerKind = "mcp"
    url: str = ""
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secret: neither logged nor told."""
    description: str = ""
    document: Mapping[str, Any] | None = field(default=None, repr=False)
    """OpenAPI document of a server of kind `http`; None: it is at `url`."""
    trusted: bool = False
    """Whether the operator's configuration names it."""
    allowed_tools: frozenset[str] | None = None
    """None: all."""
    require_approval: Approval | None = None
    """`always` cannot be loosened by a request; `never` holds where a request says nothing; None: `always` does."""
    timeout_s: float = 30.0
    pinned: Mapping[str, str] | None = None
    """Digests of the tools that were approved, by name; None: the list is not pinned."""
    refused: Mapping[str, str] | None = None
    """Digests of tools that an administrator does not want, by name."""
    id: str = ""
    """Id of its row; empty: it has none."""
    version: int = 0
    """Changes with its row: what was read of another version is read again."""


def without_secrets(text: str, server: ToolServer) -> str:
    """A server's text without the credentials that it was sent: one that echoes them does not bring them into a
    prompt."""
    for value in (*server.headers.values(), *server.environment.values()):
        for secret in (value, value.rpartition(" ")[2]):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "[secret]")
    return text


class ToolCallError(Exception):
    """A failure of a server's tool: the item's error in OpenAI's shape, and a sentence for the model."""

    def __init__(self, error: Mapping[str, Any], message: str) -> None:
        super().__init__(message)
        self.error = error


def http_error(status: int, message: str) -> ToolCallError:
    return ToolCallError({"type": "http_error", "code": status, "message": message}, message)


def protocol_error(code: int, message: str) -> ToolCallError:
    return ToolCallError({"type": "mcp_protocol_error", "code": code, "message": message}, message)


def tool_error(text: str) -> ToolCallError:
    content = [{"type": "text", "text": text}]
    return ToolCallError({"type": "mcp_tool_execution_error", "content": content}, text or "the tool failed")


def configured_server(config: ToolServerConfig) -> ToolServer:
    return ToolServer(
        label=config.name,
        kind=config.kind,
        url=config.url or "",
        command=tuple(config.command),
        environment=config.environment,
        headers=config.headers,
        description=config.description,
        trusted=True,
        allowed_tools=None if config.allowed_tools is None else frozenset(config.allowed_tools),
        require_approval=config.require_approval,
        timeout_s=config.timeout_s,
    )
