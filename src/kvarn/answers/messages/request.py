"""A request of Anthropic's in the words of a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvarn.wire.anthropic.blocks import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock, text_of
from kvarn.wire.anthropic.hosted import HostedToolResult, HostedToolUse
from kvarn.wire.anthropic.messages import AssistantMessage, MessagesPrompt, SystemMessage, UserMessage
from kvarn.wire.anthropic.tools import ClientTool, ServerTool, ToolChoice, ToolDefinition
from kvarn.wire.anthropic.tools import Tool as AnyTool
from kvarn.wire.openai.chat.request import ChatCompletionRequest, FunctionDefinition, Tool
from kvarn.wire.openai.errors import ApiError, ContextLengthError, invalid_request
from kvarn.wire.openai.parse import validate

_ANTHROPIC_NAMES = {
    "stop": "stop_sequences",
    "tool_choice.function.name": "tool_choice.name",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
"""Names of a chat request's fields in `/v1/messages`."""
_SHOWN_CHARS = 40
_CLIENTS_LINE = "x-anthropic-billing-header:"
"""Begins a block that Claude Code puts before its instructions, with a hash of the conversation's first words: no two
conversations would have a prefix in common."""


def has_late_instructions(request: MessagesPrompt) -> bool:
    """Whether a system message comes after the first message."""
    return any(isinstance(message, SystemMessage) for message in request.messages[1:])


def chat_request(
    request: MessagesPrompt, functions: Sequence[Tool] = (), *, late_instructions_from: str = "system"
) -> ChatCompletionRequest:
    """The chat that answers a request. `functions`: those that stand for its tools that the server runs. Raises
    `ApiError` in the words of `/v1/messages`. `late_instructions_from`: the role of instructions behind the first
    message, since some models' templates know them at the beginning only."""
    data: dict[str, Any] = {"model": request.model, "messages": _messages(request, late_instructions_from)}
    if isinstance(request.messages[-1], AssistantMessage):
        data |= {"continue_final_message": True, "add_generation_prompt": False}
    own = [_tool(tool) for tool in request.tools or () if not isinstance(tool, ServerTool)]
    if own or functions:
        data["tools"] = [*own, *functions]
    if request.tool_choice is not None:
        if not functions:
            _check_choice(request.tool_choice, request.tools or ())
        data |= _choice(request.tool_choice)
    if request.thinking is not None:
        thinks = request.thinking.type != "disabled"
        data["chat_template_kwargs"] = {"enable_thinking": thinks, "thinking": thinks}
        data["include_reasoning"] = request.thinking.display != "omitted"
    if request.format is not None:
        form = {"name": "output", "schema": request.format.schema_}
        data["response_format"] = {"type": "json_schema", "json_schema": form}
    if request.output_config is not None and request.output_config.effort is not None:
        data["reasoning_effort"] = request.output_config.effort
    data |= _sampling(request)
    try:
        return validate(ChatCompletionRequest, data)
    except ApiError as error:
        raise in_anthropic_terms(error) from None


def in_anthropic_terms(error: ApiError) -> ApiError:
    """Rewrite an error about a chat request with the field names of `/v1/messages`."""
    if isinstance(error, ContextLengthError):
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.limit} maximum"
        return ApiError(error.status, message, code=error.code)
    theirs = _ANTHROPIC_NAMES.get(error.param or "")
    if theirs is None:
        return error
    message = error.message.replace(repr(error.param), repr(theirs))
    return ApiError(error.status, message, type=error.type, code=error.code, param=theirs, headers=error.headers)


def _messages(request: MessagesPrompt, late_instructions_from: str) -> list[dict[str, Any]]:
    """Messages as a chat has them: tool results in messages of their own, turns of one side in one message."""
    messages: list[dict[str, Any]] = []
    if instructions := _instructions(request.system or ""):
        messages.append({"role": "system", "content": instructions})
    last_user = max((i for i, each in enumerate(request.messages) if isinstance(each, UserMessage)), default=0)
    for number, message in enumerate(request.messages):
        if isinstance(message, SystemMessage):
            is_over = message.clear_at == "next_user_message" and number < last_user
            said = [{"role": late_instructions_from if number else "system", "content": text_of(message.content)}]
            parts = said if message.content and not is_over else []
        else:
            parts = _split(message)
        for plain in parts:
            last = messages[-1] if messages else {}
            if plain["role"] == last.get("role") in ("user", "assistant") and "tool_calls" not in last:
                last |= plain | {"content": _joined(last["content"], plain["content"])}
            else:
                messages.append(plain)
    return messages


def _instructions(system: str | list[TextBlock]) -> str:
    if isinstance(system, str):
        return system
    return text_of([block for block in system if not block.text.startswith(_CLIENTS_LINE)])


def _joined(first: str | None, second: str | None) -> str | None:
    return "\n".join(text for text in (first, second) if text) or None


def _split(message: UserMessage | AssistantMessage) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if any(isinstance(block, HostedToolResult) for block in message.content):
        assert isinstance(message, AssistantMessage)
        return _split_hosted(message)
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    said = {"role": message.role, "content": text_of(texts)}
    if isinstance(message, UserMessage):
        results = [_result(block) for block in message.content if isinstance(block, ToolResultBlock)]
        return [*results, said] if texts or not results else results
    thoughts = [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
    if thoughts:
        said["reasoning_content"] = "\n".join(thoughts)
    calls = [_call(block) for block in message.content if isinstance(block, ToolUseBlock)]
    return [said | {"content": said["content"] or None, "tool_calls": calls}] if calls else [said]


def _split_hosted(message: AssistantMessage) -> list[dict[str, Any]]:
    """An answer whose tools ran on the server: each result is a message of its own, behind its call."""
    messages: list[dict[str, Any]] = []
    calls = {block.id: block for block in message.content if isinstance(block, HostedToolUse)}
    part: list[Any] = []
    for block in message.content:
        if isinstance(block, HostedToolUse):
            continue
        if not isinstance(block, HostedToolResult):
            part.append(block)
            continue
        call = calls[block.tool_use_id]
        function = {"name": call.function, "arguments": msgspec.json.encode(call.input).decode()}
        said = _split(message.model_copy(update={"content": part}))[-1] if part else {"role": "assistant"}
        told = {"content": said.get("content") or None}
        tool_calls = [*said.get("tool_calls", ()), {"id": call.id, "type": "function", "function": function}]
        messages.append(said | told | {"tool_calls": tool_calls})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": block.text})
        part = []
    return [*messages, *_split(message.model_copy(update={"content": part}))] if part else messages


def _result(block: ToolResultBlock) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text}


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _tool(tool: ToolDefinition | ClientTool) -> Tool:
    shown = tool.definition if isinstance(tool, ClientTool) else tool
    # Made, not validated: names may be longer here than in OpenAI's requests.
    function = FunctionDefinition.model_construct(
        name=tool.name, description=shown.description, parameters=dict(shown.input_schema), strict=tool.strict
    )
    return Tool.model_construct(type="function", function=function)


def _check_choice(choice: ToolChoice, tools: Sequence[AnyTool]) -> None:
    """Refuse a choice of nothing but tools of a server, which the model is not offered. Raises `ApiError`: 400."""
    if choice.type not in ("any", "tool"):
        return
    wanted = [tool for tool in tools if choice.type == "tool" and tool.name == choice.name] or tools
    unserved = [tool.type[:_SHOWN_CHARS] for tool in wanted if isinstance(tool, ServerTool)]
    if unserved and len(unserved) == len(wanted):
        field = "tool_choice.name" if choice.type == "tool" else "tool_choice"
        why = f"this server runs no tool of type {unserved[0]!r}, so the model is not offered it."
        raise invalid_request(f"{field!r} asks for what is not there: {why}", field)


def _choice(choice: ToolChoice) -> dict[str, Any]:
    if choice.type == "none":
        return {"tool_choice": "none"}
    parallel = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    if choice.type == "tool":
        return {"tool_choice": {"type": "function", "function": {"name": choice.name}}, **parallel}
    return {"tool_choice": "required" if choice.type == "any" else "auto", **parallel}


def _sampling(request: MessagesPrompt) -> dict[str, Any]:
    data = {
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences or None,
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "user": request.metadata and request.metadata.user_id,
        "service_tier": {"standard_only": "default"}.get(request.service_tier or "", request.service_tier),
    }
    return {name: value for name, value in data.items() if value is not None}
