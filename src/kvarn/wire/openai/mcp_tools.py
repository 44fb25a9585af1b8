"""Tools of type `mcp` and `web_search` as requests name them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from kvarn.config.tool_servers import check_label
from kvarn.wire.openai.common import DefaultsModel, LenientModel, Refused, disagreement

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*$", max_length=64), AfterValidator(check_label)]
"""No two underscores in a row: those separate it from the name of a tool."""
ToolNames = Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=256)]


class ToolFilter(DefaultsModel):
    """Some of a server's tools: by name, by what the server says they do, or both."""

    tool_names: ToolNames | None = None
    read_only: bool | None = None

    def holds(self, name: str, read_only: bool) -> bool:
        named = self.tool_names is None or name in self.tool_names
        return named and (self.read_only is None or self.read_only == read_only)


class ApprovalFilter(DefaultsModel):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class McpTool(LenientModel):
    """Entry of `tools` that names an MCP server: a registered one by its name as `server_label`, or any by its URL."""

    type: Literal["mcp"]
    server_label: Label
    server_url: str | None = Field(None, max_length=2048)
    server_description: str | None = Field(None, max_length=1024)
    authorization: str | None = Field(None, max_length=8192, repr=False)
    headers: dict[str, str] | None = Field(None, max_length=64, repr=False)
    allowed_tools: ToolNames | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None
    defer_loading: bool | None = None  # taken as a hint: every tool is offered at once
    allowed_callers: list[str] | None = None
    connector_id: Refused = None
    tunnel_id: Refused = None

    @model_validator(mode="after")
    def _has_one_authorization(self) -> McpTool:
        if self.authorization and any(name.lower() == "authorization" for name in self.headers or ()):
            raise disagreement("Give 'authorization' or a header of that name, not both.", "authorization")
        return self

    def offers(self, name: str, read_only: bool) -> bool:
        if isinstance(self.allowed_tools, ToolFilter):
            return self.allowed_tools.holds(name, read_only)
        return self.allowed_tools is None or name in self.allowed_tools

    def approval_of(self, name: str, read_only: bool) -> Literal["always", "never"] | None:
        """The request's word on calls of a tool; None: it says nothing."""
        asked = self.require_approval
        if not isinstance(asked, ApprovalFilter):
            return asked
        if asked.always is not None and asked.always.holds(name, read_only):
            return "always"
        return "never" if asked.never is not None and asked.never.holds(name, read_only) else "always"

    @property
    def sent_headers(self) -> dict[str, str]:
        token = {"authorization": f"Bearer {self.authorization}"} if self.authorization else {}
        return {**(self.headers or {}), **token}


class WebSearchFilters(LenientModel):
    allowed_domains: list[str] | None = Field(None, max_length=100)
    blocked_domains: list[str] | None = Field(None, max_length=100)


class WebSearchTool(LenientModel):
    """Entry of `tools` that lets the model search with the project's own search server."""

    type: str
    filters: WebSearchFilters | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: dict[str, Any] | None = None  # taken as a hint, as those below
    external_web_access: bool | None = None
    search_content_types: list[str] | None = None
