"""Events of a stream that tell of items of tools that run here: pure functions of the item, so that a stream is sent
again from what is stored.

    output_item.added · TYPE.in_progress · what is called · TYPE.searching / .interpreting
                      the tool runs
    TYPE.completed / .failed · output_item.done
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvarn.wire.openai.responses.hosted import HOSTED_CALLS, MODEL_VIEW
from kvarn.wire.openai.responses.items import StoredItem

EventParts = tuple[str, dict[str, Any]]
"""Type of an event without `response.`, and its fields besides those that name the item."""
_WORKING = {"file_search_call": "searching", "web_search_call": "searching", "code_interpreter_call": "interpreting"}
_UNCALLED: dict[str, dict[str, Any]] = {
    "mcp_call": {"arguments": "", "output": None, "error": None},
    "code_interpreter_call": {"code": "", "outputs": None},
    "file_search_call": {"results": None},
    "mcp_list_tools": {"tools": [], "error": None},
}
"""Fields of an item as it is added, before they are known."""


def added(item: StoredItem) -> StoredItem:
    """The item as its first event shows it."""
    if item["type"] not in HOSTED_CALLS and item["type"] != "mcp_list_tools":
        return item
    shown = {name: value for name, value in item.items() if name != MODEL_VIEW} | _UNCALLED.get(item["type"], {})
    if item["type"] in HOSTED_CALLS:
        shown["status"] = "in_progress"
    if item["type"] == "web_search_call":
        shown["action"] = {name: value for name, value in item["action"].items() if name != "sources"}
    return shown


def opening(item: StoredItem) -> Iterator[EventParts]:
    """Events behind the first, up to when the tool runs."""
    kind = item["type"]
    if kind not in HOSTED_CALLS and kind != "mcp_list_tools":
        return
    yield f"{kind}.in_progress", {}
    if kind == "mcp_call":
        yield "mcp_call_arguments.delta", {"delta": item["arguments"]}
        yield "mcp_call_arguments.done", {"arguments": item["arguments"]}
    elif kind == "code_interpreter_call":
        yield "code_interpreter_call_code.delta", {"delta": item["code"]}
        yield "code_interpreter_call_code.done", {"code": item["code"]}
    if kind in _WORKING:
        yield f"{kind}.{_WORKING[kind]}", {}


def closing(item: StoredItem) -> Iterator[EventParts]:
    """Events from when the tool has run, before the last; OpenAI has none for a failure of its own tools."""
    kind = item["type"]
    if kind == "mcp_list_tools":
        yield f"{kind}.{'failed' if item.get('error') else 'completed'}", {}
    elif kind == "mcp_call":
        yield f"{kind}.{'completed' if item['status'] == 'completed' else 'failed'}", {}
    elif kind in HOSTED_CALLS and item["status"] == "completed":
        yield f"{kind}.completed", {}
