"""A request for a response in the words of a chat request, and as the response echoes it."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from kvarn.answers.tiers import requested_tier
from kvarn.responses.tools import OfferedTool, arguments_of, chat_name, chat_tool, check_chat_names, offered_tools
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.parse import validate
from kvarn.wire.openai.responses.answer import Response
from kvarn.wire.openai.responses.items import CALLS, OUTPUTS, StoredItem, summary_of
from kvarn.wire.openai.responses.request import ContextFields, ResponseRequest
from kvarn.wire.openai.responses.tools import (
    OFFERED_TYPES,
    AllowedTools,
    FunctionTool,
    HostedTool,
    NamespaceTool,
    ResponseTool,
    ToolReference,
)

SUMMARY = "Summary of the conversation so far:"
"""Begins what the model is shown of a compaction."""

_SHOWN_TOOLS = 8
_SHOWN_CHARS = 80
_HINTS = (
    *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *("agent_hint", "retention_directives"),
)

_RESPONSE_NAMES = (
    (re.compile(r"messages\b.*"), "input"),
    (re.compile(r"max_(?:completion_)?tokens"), "max_output_tokens"),
    (re.compile(r"response_format(?:\.json_schema)?"), "text.format"),
    (re.compile(r"reasoning_effort"), "reasoning.effort"),
    (re.compile(r"(tools\[\d+\])\.function"), r"\1"),
)
"""Names of a chat request's fields in `/v1/responses`."""


def new_response(request: ResponseRequest, response_id: str, created_at: int) -> Response:
    background = bool(request.background)
    return Response(
        id=response_id,
        created_at=created_at,
        model=request.model,
        status="queued" if background else "in_progress",
        background=background,
        store=request.stored,
        previous_response_id=request.previous_response_id,
        conversation=None if request.conversation_id is None else {"id": request.conversation_id},
        instructions=request.instructions,
        tools=echoed_tools(request),
        tool_choice=_plain(request.tool_choice or "auto"),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        text=_echo_text(request),
        truncation=request.truncation or "disabled",
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_logprobs=request.top_logprobs or 0,
        service_tier=requested_tier(request.service_tier),
        reasoning=None if request.reasoning is None else {"effort": request.reasoning.effort, "summary": None},
        metadata=request.metadata or {},
        user=UNSET if request.user is None else request.user,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
    )


def chat_request(
    request: ContextFields, model: str, items: list[StoredItem], seed: int | None = None
) -> ChatCompletionRequest:
    """The chat that answers `items`. Raises `ApiError` 400, in the words of `/v1/responses`: what chat refuses is
    refused here."""
    data: dict[str, Any] = {"model": model, "messages": chat_messages(request.instructions, items)}
    if not data["messages"]:
        raise empty_input()
    offered = offered_tools(echoed_tools(request))
    check_chat_names(offered)
    if offered:
        data["tools"] = [chat_tool(tool)[0] for tool in offered]
    if request.tool_choice is not None:
        data["tool_choice"] = _chat_choice(request.tool_choice, offered)
    if request.parallel_tool_calls is not None:
        data["parallel_tool_calls"] = request.parallel_tool_calls
    if request.text is not None and request.text.format is not None:
        data["response_format"] = _chat_format(_plain(request.text.format))
    if request.reasoning is not None and request.reasoning.effort is not None:
        data["reasoning_effort"] = request.reasoning.effort
    if request.conversation_id is not None:
        data["prompt_cache_key"] = request.conversation_id
    if isinstance(request, ResponseRequest):
        data |= _sampling(request)
    if seed is not None:
        data["seed"] = seed
    try:
        return validate(ChatCompletionRequest, data)
    except ApiError as error:
        raise in_response_terms(error) from None


def chat_messages(instructions: str | None, items: list[StoredItem]) -> list[dict[str, Any]]:
    """Items as the messages of a chat. Calls join the assistant's message before them, what the model thought joins the
    one after it; the result of a call that is no longer there is left out."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    calls: set[str] = set()
    thoughts: list[str] = []
    for item in items:
        if item["type"] == "reasoning":
            thoughts += [part["text"] for part in item.get("content") or item["summary"]]
        elif item["type"] == "message":
            messages.append({"role": item["role"], "content": _content(item["content"])})
        elif item["type"] == "compaction":
            summary = f"{SUMMARY}\n\n{summary_of(item['encrypted_content'])}"
            messages.append({"role": "user", "content": summary})
        elif item["type"] in CALLS:
            calls.add(item["call_id"])
            if thoughts or not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(_chat_call(item))
        elif item["type"] in OUTPUTS and item["call_id"] in calls:
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])})
        if thoughts and item["type"] != "reasoning":
            if messages and messages[-1]["role"] == "assistant":
                messages[-1]["reasoning_content"] = "\n".join(thoughts)
            thoughts = []
    return messages


def empty_input() -> ApiError:
    """The 400 for a request that brings nothing and goes on from nothing."""
    return invalid_request("There is nothing to answer: 'input' is empty.", "input")


def in_response_terms(error: ApiError) -> ApiError:
    """Rewrite an error about a chat request with the field names of `/v1/responses`."""
    if error.param is None:
        return error
    param, message = error.param, error.message
    for theirs, ours in _RESPONSE_NAMES:
        renamed = theirs.sub(ours, param)
        message = message.replace(f"'{param}'", f"'{renamed}'")
        param = renamed
    return ApiError(error.status, message, type=error.type, code=error.code, param=param, headers=error.headers)


def _sampling(request: ResponseRequest) -> dict[str, Any]:
    data: dict[str, Any] = {"max_completion_tokens": request.max_output_tokens}
    data |= {name: getattr(request, name) for name in ("temperature", "top_p", "service_tier", *_HINTS)}
    if request.with_logprobs:
        data |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    return {name: value for name, value in data.items() if value is not None}


def _content(content: str | list[dict[str, Any]]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    texts: list[str] = [part.get("text", part.get("refusal", "")) for part in content]
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return texts[0] if texts else ""


def _chat_call(item: StoredItem) -> dict[str, Any]:
    arguments = item["arguments"] if item["type"] == "function_call" else arguments_of(item["input"])
    function = {"name": chat_name(item["name"], item.get("namespace")), "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _chat_choice(choice: str | ToolReference | AllowedTools, offered: list[OfferedTool]) -> Any:
    if choice in ("none", "auto"):
        return choice
    if isinstance(choice, ToolReference):
        found = next((tool.chat_name for tool in offered if tool.name == choice.name), None)
        if found is None:
            raise _not_offered(_unknown(choice.name), offered, "tool_choice.name")
        return _named(found)
    if isinstance(choice, str):
        if not offered:
            raise _not_offered("asks for a call, and no tool is offered", offered, "tool_choice")
        return choice
    wanted: set[str] = set()
    known = {name for tool in offered for name in (tool.name, tool.namespace)}
    for number, tool in enumerate(choice.tools):
        if tool.type in OFFERED_TYPES:
            if tool.name not in known or tool.name is None:
                raise _not_offered(_unknown(tool.name), offered, f"tool_choice.tools[{number}].name")
            wanted.add(tool.name)
    allowed = [_named(tool.chat_name) for tool in offered if wanted & {tool.name, tool.namespace}]
    if not allowed:
        raise _not_offered("allows none of the tools that are offered", offered, "tool_choice.tools")
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": allowed}}


def _unknown(name: str | None) -> str:
    return "is missing" if name is None else f"is {name[:_SHOWN_CHARS]!r}, and no such tool is offered"


def _not_offered(what: str, offered: list[OfferedTool], where: str) -> ApiError:
    names = ", ".join(repr(tool.name) for tool in offered[:_SHOWN_TOOLS]) or "none"
    message = f"{where!r} {what}. Tools that are offered: {names}; this server runs no tools itself."
    return invalid_request(message, where)


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _chat_format(form: dict[str, Any]) -> dict[str, Any]:
    kind = form.pop("type")
    return {"type": kind, "json_schema": form} if kind == "json_schema" else {"type": kind}


def grammar_warnings(request: ContextFields) -> list[str]:
    """Warnings about grammars of a request's tools that are not enforced."""
    warnings = [chat_tool(tool)[1] for tool in offered_tools(echoed_tools(request)) if tool.is_custom]
    return [warning for warning in warnings if warning is not None]


def echoed_tools(request: ContextFields) -> list[dict[str, Any]]:
    return [_echo_tool(tool) for tool in request.tools or () if not isinstance(tool, HostedTool)]


def _echo_tool(tool: ResponseTool) -> dict[str, Any]:
    if isinstance(tool, NamespaceTool):
        tools = [_echo_tool(each) for each in tool.tools]
        return {"type": "namespace", "name": tool.name, "description": tool.description or "", "tools": tools}
    if not isinstance(tool, FunctionTool):
        return dict(tool.model_dump(exclude_none=True))
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }


def _echo_text(request: ResponseRequest) -> dict[str, Any]:
    given: dict[str, Any] = {} if request.text is None else _plain(request.text)
    return {"format": {"type": "text"}, **given}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else value.model_dump(by_alias=True, exclude_none=True)
