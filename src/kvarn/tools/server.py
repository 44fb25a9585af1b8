"""A server whose tools models may use: registered by a project, named by the operator, or named by one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvarn.config.tool_servers import ToolServerConfig, ToolServerKind

Approval = Literal["always", "never"]


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
    id: str = ""
    """Id of its row; empty: it has none."""
    version: int = 0
    """Changes with its row: what was read of another version is read again."""


class ToolCallError(Exception):
    """A failure of a server's tool: the item's error in OpenAI's shape, and a sentence for the model."""

    def __init__(self, error: Mapping[str, Any], message: str) -> None:
        super().__init__(message)
        self.error = error


def http_error(status: int, message: str) -> ToolCallError:
    return ToolCallError({"type": "http_error", "code": status, "message": message}, message)


def protocol_error(code: int, message: str) -> ToolCallError:
    return ToolCallError({"type": "mcp_protocol_error", "code": code, "message": message}, message)


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
