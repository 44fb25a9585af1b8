"""Tools that the platform runs for a model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from kvarn.config.allowed_places import AllowedPlace
from kvarn.config.section import Section
from kvarn.config.tool_servers import ToolServerConfig

ToolType = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class ToolsConfig(Section):
    """Tools that the platform runs for a model, and what one request may use of them."""

    enabled: tuple[ToolType, ...] | None = None
    """Types of tools that may be used: `file_search`, `web_search`, `code_interpreter`, `mcp` (with it servers of
    kind `http`), `calculator`, `clock`. Default: all that are installed; an empty list turns them off. Projects and
    keys may have fewer (docs/guides/hosted_tools.md)."""

    max_rounds: int = Field(16, ge=1, le=1000)
    """Times that a request may ask the model again with results of tools. Then it is asked once more without tools."""

    max_calls: int = Field(64, ge=1, le=10_000)
    """Calls of tools in one request; a client may ask for fewer (`max_tool_calls`)."""

    max_parallel: int = Field(8, ge=1, le=256)
    """Calls of one request that run at once; others wait for them."""

    timeout_s: float = Field(120.0, gt=0)
    """Seconds after which a request begins no more calls, and those that run are stopped."""

    call_timeout_s: float = Field(30.0, gt=0)
    """Seconds that one call may take."""

    max_tokens: int | None = Field(None, ge=1)
    """Tokens of prompts and answers that a request may use over all its rounds; then the model is asked once more
    without tools. Default: no limit but those of its project."""

    max_result_bytes: int = Field(64 * 1024, ge=256)
    """Bytes of one result that the model is shown; the rest is cut off, and the model is told."""

    servers: list[ToolServerConfig] = Field([], max_length=100)
    """Servers whose tools every project may use."""

    allow_private: list[str] = Field([], max_length=100)
    """Private addresses that servers of projects may have: hosts, addresses and networks, each with a port or for all,
    such as `127.0.0.1:8001` or `10.1.0.0/16`. They may be asked by plain HTTP. Default: public addresses only, by
    HTTPS."""

    request_servers: bool = True
    """Let requests name MCP servers by `server_url`, beside those that are registered."""

    @field_validator("allow_private")
    @classmethod
    def _can_be_read(cls, places: list[str]) -> list[str]:
        for place in places:
            AllowedPlace.parse(place)
        return places

    @field_validator("servers")
    @classmethod
    def _have_names_of_their_own(cls, servers: list[ToolServerConfig]) -> list[ToolServerConfig]:
        names = [server.name for server in servers]
        if len(set(names)) < len(names):
            raise ValueError("two tool servers have one name")
        return servers
