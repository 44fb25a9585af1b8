"""Settings of servers whose tools the platform runs for models, as the operator names them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from kvarn.config.section import Section

OWN_LABEL = "kvarn"
"""The label under which built-in tools are told: no server's."""


def check_label(label: str) -> str:
    if label.lower() == OWN_LABEL:
        raise ValueError(f"{label!r} is the label of built-in tools: choose another")
    return label


ToolServerName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z][A-Za-z0-9-]*(_[A-Za-z0-9-]+)*$", max_length=32),
    AfterValidator(check_label),
]
"""No two underscores in a row: those separate it from the name of a tool."""
ToolServerKind = Literal["mcp", "http", "web_search"]


class ToolServerConfig(Section):
    """A server whose tools every project may use. It is trusted: it may have a private address, and its tools need no
    approval of their list."""

    name: ToolServerName
    """Name that requests give as `server_label`."""

    kind: ToolServerKind = "mcp"
    """`mcp`: speaks the Model Context Protocol. `http`: an API described by an OpenAPI document. `web_search`: answers
    searches with JSON."""

    url: str | None = None
    """Address of the MCP server (streamable HTTP), of the OpenAPI document, or of the search."""

    command: list[str] = Field([], max_length=64)
    """Command of an MCP server that speaks over its standard input and output, instead of `url`. It runs as the user
    that Kvarn runs as: one process for all who use it, ended when nobody has for five minutes."""

    environment: dict[str, str] = Field({}, repr=False)
    """Environment of `command`, beside PATH and HOME. May hold secrets."""

    headers: dict[str, str] = Field({}, repr=False)
    """Headers of each request to `url`, such as `authorization`. Secret."""

    description: str = ""
    """Sentence for the model about what the server is for."""

    allowed_tools: list[str] | None = None
    """Names of the tools that may be used. Default: all."""

    require_approval: Literal["always", "never"] | None = "never"
    """`always`: each call waits for the client's approval, whatever a request asks for. `never`: calls run unless a
    request asks for approval."""

    timeout_s: float = Field(30.0, gt=0, le=600)
    """Seconds that one call may take."""

    @model_validator(mode="after")
    def _names_one_place(self) -> ToolServerConfig:
        if (self.url is None) == (not self.command):
            raise ValueError(f"the tool server {self.name!r} needs a `url` or a `command`, not both")
        if self.command and self.kind != "mcp":
            raise ValueError(f"the tool server {self.name!r} has a `command`: only those of kind mcp have one")
        return self
