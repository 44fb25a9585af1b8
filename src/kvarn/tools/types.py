"""Calls of tools, what comes of them, and how a tool is run.

A request names tools by type (`file_search`, `mcp`, `code_interpreter`, `web_search`, ...). The `ToolProvider` of the
type opens them: what it gives are `Tool`s, each a function as the model sees it. The loop (`tools/loop.py`) runs what
the model calls, within limits, and sends the results back to the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from kvarn.answers.context import ServingContext
    from kvarn.answers.record import RequestRecord
    from kvarn.store.owner import Owner

CallStatus = Literal["completed", "failed", "incomplete"]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """The JSON that the model wrote."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The request that a tool works for, and its limits."""

    serving: ServingContext
    record: RequestRecord
    deadline: float
    """Seconds of the serving clock; the call is cancelled then."""
    max_result_bytes: int


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage that a tool read, which an answer may cite."""

    file_id: str
    filename: str
    start: int
    end: int
    text: str
    url: str = ""
    """Address of a web page: an answer cites it as `url_citation`, with `filename` as its title; `file_id` is empty."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that code wrote into a container: an answer that names its path cites it."""

    container_id: str
    file_id: str
    path: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The end of a call."""

    output: str
    """Data for the model: the loop marks it and escapes special tokens."""
    status: CallStatus = "completed"
    error: Mapping[str, Any] | None = None
    """OpenAI's typed error of the item; None: the tool did not fail."""
    item: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the output item beside id, type, status and those of `Tool.item_fields`: `queries` and `results` of a
    file search, `code` and `outputs` of a code interpreter, `output` of an MCP call."""
    quotes: Sequence[Quote] = ()
    files: Sequence[WrittenFile] = ()
    metadata: Sequence[str] = ()
    """Sentences for the answer's metadata: what was left out, and why."""


class Tool(Protocol):
    @property
    def definition(self) -> ToolDefinition: ...

    @property
    def item_type(self) -> str:
        """Type of the output item of a call: `mcp_call`, `file_search_call`, ..."""
        ...

    @property
    def item_fields(self) -> Mapping[str, Any]:
        """Fields of the output item that are known before a call: `server_label` and `name` of an MCP tool,
        `container_id` of a code interpreter. The loop adds `arguments`."""
        ...

    @property
    def needs_approval(self) -> bool:
        """Whether a call waits for the client's approval."""
        ...

    async def call(self, context: ToolContext, call: ToolCall) -> ToolResult:
        """Run a call. A failure of the tool is a result; an `ApiError` ends the request. Cancelling ends what runs.
        The loop sends the stream's events of the item (`mcp_call.in_progress`, `.completed`, ...) by itself."""
        ...


@dataclass(frozen=True, slots=True)
class OpenedTools:
    tools: Sequence[Tool]
    items: Sequence[Mapping[str, Any]] = ()
    """Output items that opening gave, such as `mcp_list_tools`."""


class ToolProvider(Protocol):
    async def open(self, context: ToolContext, asked: Mapping[str, Any]) -> OpenedTools:
        """Tools of one entry of a request's `tools`. Raises `ApiError` for an entry that is no good or not allowed.
        No tools and no items: this project has none of the type; the entry is ignored, and the answer says so."""
        ...

    async def problem(self, owner: Owner) -> str | None:
        """The reason why a project's tools of this type cannot run here; None: they can."""
        ...
