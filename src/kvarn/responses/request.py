"""A request for a response in the words of a chat request, and as the response echoes it."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from kvarn.answers.tiers import requested_tier
from kvarn.responses.chat_messages import chat_messages
from kvarn.responses.tools import OfferedTool, chat_tool, check_chat_names, offered_tools
from kvarn.tools.registry import OfferedTools
from kvarn.wire.openai.chat.request import ChatCompletionRequest, HostedChoice
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.hosted import HostedTool
from kvarn.wire.openai.parse import validate
from kvarn.wire.openai.responses.answer import Response
from kvarn.wire.openai.responses.items import StoredItem
from kvarn.wire.openai.responses.request import ContextFields, ResponseRequest
from kvarn.wire.openai.responses.tools import (
    OFFERED_TYPES,
    AllowedTools,
    FunctionTool,
    NamespaceTool,
    ResponseTool,
    ToolReference,
)

_SHOWN_TOOLS = 8
_SHOWN_CHARS = 80
_HINTS = (
    *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *("agent_hint", "retention_directives", "cache"),
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


NO_HOSTED = OfferedTools()


def chat_request(
    request: ContextFields,
    model: str,
    items: list[StoredItem],
    seed: int | None = None,
    hosted: OfferedTools = NO_HOSTED,
) -> ChatCompletionRequest:
    """The chat that answers `items`. `hosted`: what opening the request's tools gave. Raises `ApiError` 400, in the
    words of `/v1/responses`: what chat refuses is refused here."""
    data: dict[str, Any] = {"model": model, "messages": chat_messages(request.instructions, items)}
    if not data["messages"]:
        raise empty_input()
    offered = offered_tools(echoed_tools(request))
    check_chat_names(offered)
    if offered or hosted.by_name:
        data["tools"] = [*(chat_tool(tool)[0] for tool in offered), *hosted.chat_tools]
    if request.tool_choice is not None:
        data["tool_choice"] = _chat_choice(request.tool_choice, offered, hosted)
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


def _chat_choice(
    choice: str | ToolReference | HostedChoice | AllowedTools, offered: list[OfferedTool], hosted: OfferedTools
) -> Any:
    if choice in ("none", "auto"):
        return choice
    names = [*(tool.name for tool in offered), *hosted.by_name]
    if isinstance(choice, HostedChoice):
        return _hosted_choice(choice, names, hosted)
    if isinstance(choice, ToolReference):
        found = next((tool.chat_name for tool in offered if tool.name == choice.name), None)
        if found is None:
            raise _not_offered(_unknown(choice.name), names, "tool_choice.name")
        return _named(found)
    if isinstance(choice, str):
        if not names:
            raise _not_offered("asks for a call, and no tool is offered", names, "tool_choice")
        return choice
    wanted: set[str] = set()
    ours: list[str] = []
    known = {name for tool in offered for name in (tool.name, tool.namespace)}
    for number, tool in enumerate(choice.tools):
        if tool.type in OFFERED_TYPES:
            if tool.name not in known or tool.name is None:
                raise _not_offered(_unknown(tool.name), names, f"tool_choice.tools[{number}].name")
            wanted.add(tool.name)
        else:
            ours += hosted.chosen(tool.model_dump())
    allowed = [_named(tool.chat_name) for tool in offered if wanted & {tool.name, tool.namespace}]
    allowed += [_named(name) for name in dict.fromkeys(ours)]
    if not allowed:
        raise _not_offered("allows none of the tools that are offered", names, "tool_choice.tools")
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": allowed}}


def _hosted_choice(choice: HostedChoice, names: list[str], hosted: OfferedTools) -> dict[str, Any]:
    found = hosted.chosen(choice.model_dump())
    if not found:
        raise _not_offered(f"asks for a tool of type {choice.type[:_SHOWN_CHARS]!r}", names, "tool_choice")
    if len(found) == 1:
        return _named(found[0])
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [_named(name) for name in found]},
    }


def _unknown(name: str | None) -> str:
    return "is missing" if name is None else f"is {name[:_SHOWN_CHARS]!r}, and no such tool is offered"


def _not_offered(what: str, offered: list[str], where: str) -> ApiError:
    names = ", ".join(map(repr, offered[:_SHOWN_TOOLS])) or "none"
    message = f"{where!r} {what}. Tools that are offered: {names}."
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
    """The request's tools as the response shows them; nothing secret is shown."""
    return [_echo_tool(tool) for tool in request.tools or ()]


def _echo_tool(tool: ResponseTool) -> dict[str, Any]:
    if isinstance(tool, NamespaceTool):
        tools = [_echo_tool(each) for each in tool.tools]
        return {"type": "namespace", "name": tool.name, "description": tool.description or "", "tools": tools}
    if isinstance(tool, HostedTool):
        return tool.without_secrets
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
