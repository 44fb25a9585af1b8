"""Ollama's requests in the words of chat and text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvarn.wire.ollama.requests import (
    AnswerRequest,
    CalledFunction,
    ChatRequest,
    GenerateRequest,
    Message,
    Options,
    Tool,
)
from kvarn.wire.openai.chat.request import ChatCompletionRequest, FunctionDefinition
from kvarn.wire.openai.chat.request import Tool as ChatTool
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.errors import ApiError, ContextLengthError, invalid_request
from kvarn.wire.openai.parse import validate

_NAMES = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "structured_outputs": "format",
    "prompt_logprobs": "logprobs",
    **{
        name: f"options.{name}"
        for name in (
            *("temperature", "top_k", "top_p", "min_p", "seed", "stop"),
            *("presence_penalty", "frequency_penalty"),
        )
    },
}


def chat_request(request: ChatRequest, model: str) -> ChatCompletionRequest:
    """The chat that answers `/api/chat`. Raises `ApiError` in the words of a chat; `in_ollama_terms` has Ollama's."""
    messages = request.messages or []
    data: dict[str, Any] = {"model": model, "messages": _messages(messages), **_answer_fields(request)}
    if request.tools:
        data["tools"] = [_tool(tool) for tool in request.tools]
    last = messages[-1]
    if last.role == "assistant" and last.content and not last.tool_calls:
        data |= {"continue_final_message": True, "add_generation_prompt": False}
    return validate(ChatCompletionRequest, data)


def prompt_chat(request: GenerateRequest, model: str) -> ChatCompletionRequest:
    system = [{"role": "system", "content": request.system}] if request.system else []
    messages = [*system, {"role": "user", "content": request.prompt}]
    return validate(ChatCompletionRequest, {"model": model, "messages": messages, **_answer_fields(request)})


def raw_completion(request: GenerateRequest, model: str, max_tokens: int) -> CompletionRequest:
    if request.system or request.context:
        raise invalid_request("'raw' goes without 'system' and 'context': write all of the prompt.", "raw")
    data: dict[str, Any] = {"model": model, "prompt": request.prompt, **_sampling(request.sampling)}
    data["max_tokens"] = max_tokens
    if request.logprobs:
        data["logprobs"] = request.top_logprobs or 0
    if request.format is not None:
        schema = request.format
        data["structured_outputs"] = {"json_object": True} if schema == "json" else {"json": schema}
    return validate(CompletionRequest, data)


def in_ollama_terms(error: ApiError) -> ApiError:
    """Rewrite an error about a chat request with Ollama's field names."""
    if isinstance(error, ContextLengthError):
        message = (
            f"the input length exceeds the context length: {error.prompt_tokens} tokens, and the model's context has "
            f"{error.limit}. Shorten the conversation."
        )
        return ApiError(error.status, message, code=error.code)
    theirs = _NAMES.get((error.param or "").partition(".")[0])
    if theirs is None:
        return error
    message = error.message.replace(repr(error.param), repr(theirs))
    return ApiError(error.status, message, type=error.type, code=error.code, param=theirs, headers=error.headers)


def _answer_fields(request: AnswerRequest) -> dict[str, Any]:
    data = _sampling(request.sampling)
    if request.logprobs:
        data |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.format == "json":
        data["response_format"] = {"type": "json_object"}
    elif request.format is not None:
        schema = {"name": "answer", "schema": request.format}
        data["response_format"] = {"type": "json_schema", "json_schema": schema}
    return data | _thinking(request.think)


def _thinking(think: bool | str | None) -> dict[str, Any]:
    if think is None:
        return {}
    if think is True:
        return {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
    effort = think or "none"
    return {"reasoning_effort": effort, "include_reasoning": effort != "none"}


def _sampling(options: Options) -> dict[str, Any]:
    data = {
        "temperature": options.temperature,
        "top_k": None if options.top_k is None else max(options.top_k, 0),
        "top_p": options.top_p,
        "min_p": options.min_p,
        "seed": None if options.seed == -1 else options.seed,
        "stop": options.stop or None,
        "max_tokens": options.max_tokens,
        "repetition_penalty": None if options.repeat_last_n == 0 else options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    return {name: value for name, value in data.items() if value is not None}


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a chat has them: each call with an id, each result with that of its call."""
    plain: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # ids and names of calls without a result
    made = 0
    for message in messages:
        data: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.role == "assistant" and message.thinking:
            data["reasoning_content"] = message.thinking
        if message.role == "assistant" and message.tool_calls:
            calls = data["tool_calls"] = []
            for call in message.tool_calls:
                call_id, made = call.id or f"call_{made:09}", made + 1
                waiting.append((call_id, call.function.name))
                calls.append({"id": call_id, "type": "function", "function": _called(call.function)})
        if message.role == "tool":
            data["tool_call_id"] = _call_of(message, waiting)
            if message.tool_name:
                data["name"] = message.tool_name
        plain.append(data)
    return plain


def _called(function: CalledFunction) -> dict[str, str]:
    given = function.arguments
    arguments = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
    return {"name": function.name, "arguments": arguments}


def _call_of(message: Message, waiting: list[tuple[str, str]]) -> str:
    """The call that a result answers: the one it names, else the first that still waits; it waits no more."""
    named = [call for call in waiting if message.tool_call_id == call[0]]
    alike = [call for call in waiting if message.tool_name == call[1]]
    found = next(iter([*named, *alike, *waiting]), None)
    if found is None:
        return message.tool_call_id or ""
    waiting.remove(found)
    return found[0]


def _tool(tool: Tool) -> ChatTool:
    # Made, not validated: names may be longer here than in OpenAI's requests.
    function = FunctionDefinition.model_construct(**tool.function.model_dump(exclude_none=True))
    return ChatTool.model_construct(type="function", function=function)
