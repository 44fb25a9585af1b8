"""Calls of tools as items of a response, and as a chat tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvarn.answers.chat.tool_calls import arguments_object
from kvarn.tools.loop import CallBegun, CallEnded


def begun_item(step: CallBegun) -> dict[str, Any]:
    """The item of a call that is about to run, without its id."""
    tool, call = step.offered.tool, step.call
    given, item = arguments_object(call.arguments), dict(tool.item_fields)
    head: dict[str, Any] = {"type": tool.item_type, "status": "in_progress"}
    if tool.item_type == "mcp_call":
        named = {"server_label": "kvarn", "name": call.name, **item}
        empty = {"output": None, "error": None, "approval_request_id": step.approval_id}
        return head | named | {"arguments": call.arguments} | empty
    if tool.item_type == "file_search_call":
        return head | {"queries": queries_of(given), "results": None} | item
    if tool.item_type == "web_search_call":
        queries = queries_of(given)
        return head | {"action": {"type": "search", "query": queries[0] if queries else ""}} | item
    return head | {"code": str(given.get("code") or ""), "container_id": "", "outputs": None} | item


def result_fields(step: CallEnded) -> dict[str, Any]:
    """The fields of a call's item that its end changes or adds."""
    result, item_type = step.result, step.begun.offered.tool.item_type
    fields, status = dict(result.item), str(result.status)
    if item_type == "web_search_call" and status == "incomplete":
        status = "failed"  # OpenAI's document has no other word
    if item_type == "mcp_call":
        fields = {"output": result.output if result.error is None else None, "error": result.error} | fields
    return fields | {"status": status}


def queries_of(given: Mapping[str, Any]) -> list[str]:
    """The queries among the arguments of a search."""
    queries = given.get("queries", given.get("query"))
    if isinstance(queries, str):
        return [queries]
    return [str(each) for each in queries] if isinstance(queries, list) else []
