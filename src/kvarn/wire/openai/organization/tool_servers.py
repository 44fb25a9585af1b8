"""`/v1/organization/projects/{project_id}/tool_servers`: ours."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from pydantic import AfterValidator, Field, model_validator

from kvarn.config.tool_servers import ToolServerKind, ToolServerName
from kvarn.wire.openai.common import RequestModel, check_printable, disagreement
from kvarn.wire.openai.mcp_tools import ToolNames

Url = Annotated[str, Field(max_length=2048), AfterValidator(check_printable)]
Headers = Annotated[dict[str, str], Field(max_length=32)]
Description = Annotated[str, Field(max_length=1024)]
Approval = Literal["always", "never"]
Timeout = Annotated[float, Field(gt=0, le=600)]


class ToolServerCreate(RequestModel):
    name: ToolServerName
    kind: ToolServerKind = "mcp"
    url: Url | None = None
    document: dict[str, Any] | None = None
    """OpenAPI document of a server of kind `http`, instead of one at `url`."""
    headers: Headers = Field(default_factory=dict, repr=False)
    """Headers of each request to the server. Kept encrypted, and never shown again."""
    description: Description = ""
    allowed_tools: ToolNames | None = None
    require_approval: Approval | None = None
    """`always`: whatever a request asks for. `never`: where a request says nothing. Null: the request decides, and what
    it says nothing of waits."""
    timeout_seconds: Timeout = 30.0

    @model_validator(mode="after")
    def _names_one_place(self) -> ToolServerCreate:
        if self.document is not None and self.kind != "http":
            raise disagreement("Only a tool server of kind 'http' has a 'document'.", "document")
        if (self.url is None) == (self.document is None):
            raise disagreement("Give 'url' or, of kind 'http', 'document'.", "url")
        return self


class ToolServerUpdate(RequestModel):
    url: Url | None = None
    document: dict[str, Any] | None = None
    headers: Headers | None = Field(None, repr=False)
    """Take the place of all that were given before."""
    description: Description | None = None
    allowed_tools: ToolNames | None = None
    require_approval: Approval | None = None
    timeout_seconds: Timeout | None = None


class ToolServerApproval(RequestModel):
    digest: str | None = Field(None, max_length=64)
    """Digest of the list that was looked at: another one is neither approved nor refused. Default: whatever the server
    tells now."""


class ToolServerObject(TypedDict):
    id: str
    object: str
    name: str
    kind: str
    url: str | None
    description: str
    header_names: list[str]
    allowed_tools: list[str] | None
    require_approval: str | None
    timeout_seconds: float
    approved_tools: list[str]
    waiting_tools: dict[str, str]
    """`changed` or `new`, by name: not offered until they are approved."""
    refused_tools: list[str]
    """Tools that wait no more, as they were told when they were refused."""
    created_at: int
    changed_at: int


class ShownTool(TypedDict):
    description: str | None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None
    request: str | None
    """Method and URL of the requests of an API's operation."""


class ServerToolObject(ShownTool):
    """A tool as its server tells it now."""

    name: str
    status: str
    """`approved`, `changed`, `new` or `refused`."""
    digest: str
    """SHA-256 of all that is told of it."""
    approved: ShownTool | None
    """The tool as it was approved, where it is told otherwise now; null: it was not, or before this was kept."""


class ServerToolList(TypedDict):
    object: str
    data: list[ServerToolObject]
    digest: str
    """Names this list when it is approved or refused."""
    gone: list[str]
    """Approved tools that are not told any more."""
