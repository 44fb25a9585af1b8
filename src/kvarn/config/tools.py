"""Settings of tools that the platform runs for models."""

from __future__ import annotations

from pydantic import Field, field_validator

from kvarn.config.section import Section
from kvarn.config.tool_servers import ToolServerConfig


class ToolsConfig(Section):
    """Tools that the platform runs for models."""

    servers: list[ToolServerConfig] = Field([], max_length=100)
    """Servers whose tools every project may use."""

    allow_private: list[str] = Field([], max_length=100)
    """Private addresses that servers of projects may have: hosts, addresses and networks, each with a port or for all,
    such as `127.0.0.1:8001` or `10.1.0.0/16`. They may be asked by plain HTTP. Default: public addresses only, by
    HTTPS."""

    request_servers: bool = True
    """Let requests name MCP servers by `server_url`, beside those that are registered."""

    @field_validator("servers")
    @classmethod
    def _differ(cls, servers: list[ToolServerConfig]) -> list[ToolServerConfig]:
        names = [server.name for server in servers]
        if len(set(names)) < len(names):
            raise ValueError("two tool servers have one name")
        return servers
