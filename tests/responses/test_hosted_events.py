"""Items of tools that run here, in every state: each event is OpenAI's, by its SDK and by its document."""

from __future__ import annotations

from typing import Any

import msgspec
import openai.types.responses as sdk
import pytest
from pydantic import TypeAdapter

from fake_tools import FakeTool
from kvarn.responses.hosted import approval_item
from kvarn.responses.shown import shown_event
from kvarn.responses.writer import ResponseWriter
from kvarn.tools.items import begun_item, result_fields
from kvarn.tools.loop import ApprovalAsked, CallBegun, CallEnded
from kvarn.tools.registry import OfferedTool
from kvarn.tools.types import ToolCall, ToolResult
from kvarn.wire.openai.responses.answer import Response, StreamEvent
from published_schemas import check

EVENT: TypeAdapter[Any] = TypeAdapter(sdk.ResponseStreamEvent)
SOURCES = [{"type": "url", "url": "https://k.example"}]
ERROR = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]}
LOGS = {"type": "logs", "logs": "1"}
FOUND = {"file_id": "file-1", "filename": "a", "score": 0.5, "attributes": {"n": 1}, "text": "t"}
TOOLS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "mcp_call": ({"server_label": "s", "name": "n"}, '{"a": 1}', {}),
    "file_search_call": ({}, '{"queries": ["q"]}', {"results": [FOUND]}),
    "web_search_call": ({}, '{"query": "q"}', {"action": {"type": "search", "query": "q", "sources": SOURCES}}),
    "code_interpreter_call": (
        {"container_id": "cntr_1"},
        '{"code": "1"}',
        {"outputs": [{"type": "logs", "logs": "1"}]},
    ),
}


def written(item_type: str, status: Any) -> list[StreamEvent]:
    """The events of a response with one call, stopped where the status is None."""
    fields, arguments, ended = TOOLS[item_type]
    tool = OfferedTool(FakeTool("t", item_type=item_type, item_fields=fields), "t")
    begun = CallBegun(tool, ToolCall("call_1", "t", arguments))
    writer = ResponseWriter(Response(id="resp_" + "ab" * 16, created_at=1, model="m"), 0)
    events = [*writer.begin(), *writer.begin_call(begun_item(begun))]
    if status is not None:
        result = ToolResult("out", status, None if status == "completed" else ERROR, ended)
        events += writer.end_call(result_fields(CallEnded(begun, result, "shown", range(1, 2), 1)))
    events += writer.close("stop")
    writer.finish("stop", msgspec.UNSET, 2)
    return [*events, writer.last()]


def check_all(events: list[StreamEvent], include: Any = ()) -> None:
    for event in events:
        shown = msgspec.to_builtins(shown_event(event, include))
        EVENT.validate_python(shown)
        check("ResponseStreamEvent", shown)


@pytest.mark.parametrize("item_type", TOOLS)
@pytest.mark.parametrize("status", ["completed", "failed", "incomplete", None])
def test_calls(item_type: str, status: Any):
    events = written(item_type, status)
    check_all(events)
    included = ["file_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs"]
    check_all(events, included)


def test_lists_of_tools_and_requests_for_approval():
    writer = ResponseWriter(Response(id="resp_" + "ab" * 16, created_at=1, model="m"), 0)
    tool = {"name": "n", "description": "d", "input_schema": {"type": "object"}, "annotations": None}
    listed = {"id": "mcpl_x", "type": "mcp_list_tools", "server_label": "s", "tools": [tool], "error": None}
    asked = ApprovalAsked(OfferedTool(FakeTool("t"), "t"), ToolCall("call_1", "t", "{}"), 1)
    failed = listed | {"tools": [], "error": "away"}
    events = writer.begin()
    for item in (listed, failed, approval_item(asked)):
        events += writer.add_hosted(item)
    check_all(events)
    assert [event.type.rpartition(".")[2] for event in events if "mcp_list_tools." in event.type] == [
        *("in_progress", "completed"),
        *("in_progress", "failed"),
    ]
    assert all(item["id"].endswith(f"_{place}") for place, item in enumerate(writer.response.output))


@pytest.mark.parametrize(
    ("item_type", "include", "field"),
    [
        ("file_search_call", "file_search_call.results", "results"),
        ("code_interpreter_call", "code_interpreter_call.outputs", "outputs"),
    ],
)
def test_results_are_shown_to_those_who_ask(item_type: str, include: str, field: str):
    done = next(event for event in written(item_type, "completed") if event.type == "response.output_item.done")
    assert msgspec.to_builtins(shown_event(done, ()))["item"][field] is None
    assert msgspec.to_builtins(shown_event(done, [include]))["item"][field]
