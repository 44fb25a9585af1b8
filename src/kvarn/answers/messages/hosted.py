"""From calls that the server ran, as items of a response, to blocks of a message."""

from __future__ import annotations

from typing import Any

from kvarn.answers.chat.tool_calls import arguments_object
from kvarn.wire.anthropic.hosted import (
    AnswerCodeResult,
    AnswerMcpToolResult,
    AnswerMcpToolUse,
    AnswerServerToolUse,
    AnswerWebSearchResult,
    HostedAnswerBlock,
)


def hosted_blocks(item: dict[str, Any]) -> tuple[HostedAnswerBlock, HostedAnswerBlock]:
    """The call, and its result."""
    name = str(item["id"]).removeprefix("call_")
    if item["type"] == "web_search_call":
        use_id, query = f"srvtoolu_{name}", item["action"].get("query", "")
        use = AnswerServerToolUse(id=use_id, name="web_search", input={"query": query})
        return use, AnswerWebSearchResult(tool_use_id=use_id, content=_pages(item))
    if item["type"] == "code_interpreter_call":
        use_id = f"srvtoolu_{name}"
        use = AnswerServerToolUse(id=use_id, name="code_execution", input={"code": item.get("code") or ""})
        return use, AnswerCodeResult(tool_use_id=use_id, content=_code_result(item))
    use_id, failed = f"mcptoolu_{name}", item["status"] != "completed"
    given = arguments_object(item.get("arguments") or "{}")
    call = AnswerMcpToolUse(id=use_id, name=item["name"], server_name=item["server_label"], input=given)
    text = _error_text(item.get("error")) if failed else item.get("output") or ""
    return call, AnswerMcpToolResult(tool_use_id=use_id, is_error=failed, content=[{"type": "text", "text": text}])


def _pages(item: dict[str, Any]) -> list[dict[str, Any]] | dict[str, Any]:
    if item["status"] != "completed":
        return {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    return [
        {
            "type": "web_search_result",
            "url": source.get("url", ""),
            "title": source.get("title", ""),
            "encrypted_content": "",
            "page_age": None,
        }
        for source in item["action"].get("sources") or ()
    ]


def _code_result(item: dict[str, Any]) -> dict[str, Any]:
    logs = "".join(str(each.get("logs", "")) for each in item.get("outputs") or ())
    failed = item["status"] != "completed"
    out, err = ("", logs) if failed else (logs, "")
    return {"type": "code_execution_result", "stdout": out, "stderr": err, "return_code": int(failed), "content": []}


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        content = error.get("content")
        if isinstance(content, list):
            return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        return str(content or error.get("message") or "")
    return str(error or "")
