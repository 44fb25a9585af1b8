"""Items of tools that the platform runs: calls, lists of a server's tools, requests for approval and their answers.

Kept items are whole, and have what the model was shown (`MODEL_VIEW`); clients see what they ask for (`visible`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from kvarn.wire.openai.common import RequestModel
from kvarn.wire.openai.responses.item_ids import ItemId, OptionalId

HOSTED_CALLS = frozenset({"file_search_call", "web_search_call", "code_interpreter_call", "mcp_call"})
HOSTED_PREFIXES = {
    "file_search_call": "fs_",
    "web_search_call": "ws_",
    "code_interpreter_call": "ci_",
    "mcp_call": "mcp_",
    "mcp_list_tools": "mcpl_",
    "mcp_approval_request": "mcpr_",
    "mcp_approval_response": "mcpa_",
}
MODEL_VIEW = "model_view"
"""Field of a kept call that no client sees: its name, arguments and result as the model was shown them."""

_Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=1024)]


class HostedItem(RequestModel):
    """Base of these items, as a client sends them back to a server that has not kept them."""

    model_config = ConfigDict(extra="ignore")

    id: OptionalId = None


class _HostedCall(HostedItem):
    status: str | None = None


class FileSearchCallItem(_HostedCall):
    type: Literal["file_search_call"]
    queries: Annotated[list[str], Field(fail_fast=True, max_length=64)]
    results: _Objects | None = None


class WebSearchCallItem(_HostedCall):
    type: Literal["web_search_call"]
    action: dict[str, Any] = Field(default_factory=dict)


class CodeInterpreterCallItem(_HostedCall):
    type: Literal["code_interpreter_call"]
    container_id: str = ""
    code: str | None = None
    outputs: _Objects | None = None


class McpCallItem(_HostedCall):
    type: Literal["mcp_call"]
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: str | dict[str, Any] | None = None
    approval_request_id: str | None = None


class McpListToolsItem(HostedItem):
    type: Literal["mcp_list_tools"]
    server_label: str
    tools: _Objects
    error: str | dict[str, Any] | None = None


class McpApprovalRequestItem(HostedItem):
    type: Literal["mcp_approval_request"]
    server_label: str
    name: str
    arguments: str


class McpApprovalResponseItem(HostedItem):
    type: Literal["mcp_approval_response"]
    approval_request_id: ItemId
    approve: bool
    reason: str | None = None


KeptHostedItem = (
    FileSearchCallItem
    | WebSearchCallItem
    | CodeInterpreterCallItem
    | McpCallItem
    | McpListToolsItem
    | McpApprovalRequestItem
    | McpApprovalResponseItem
)


def hosted_fields(item: HostedItem) -> dict[str, Any]:
    """The fields of an item as they are kept, besides id and type."""
    fields = item.model_dump(exclude={"id", "type"})
    if isinstance(item, McpApprovalResponseItem):
        return {**fields, "request_id": item.approval_request_id}  # OpenAI's document has it twice
    if isinstance(item, _HostedCall):
        fields["status"] = item.status or "completed"
    return fields


ALL_RESULTS = ("file_search_call.results", "code_interpreter_call.outputs", "web_search_call.action.sources")
"""Values of `include` that add what is left out otherwise."""


def visible(item: dict[str, Any], include: Collection[str]) -> dict[str, Any]:
    """A kept item as a client sees it. `include`: the fields that it asks for, such as `file_search_call.results`."""
    if item["type"] not in HOSTED_PREFIXES:
        return item
    shown = {name: value for name, value in item.items() if name != MODEL_VIEW}
    if item["type"] == "file_search_call" and "file_search_call.results" not in include:
        shown["results"] = None
    elif item["type"] == "code_interpreter_call" and "code_interpreter_call.outputs" not in include:
        shown["outputs"] = None
    elif item["type"] == "web_search_call" and "web_search_call.action.sources" not in include:
        shown["action"] = {name: value for name, value in item["action"].items() if name != "sources"}
    return shown
