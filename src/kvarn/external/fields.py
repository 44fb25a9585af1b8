"""Fields of a client's request that are sent to another server, and those that it would not understand."""

from __future__ import annotations

from typing import Any

from kvarn.config.external import ExternalConfig
from kvarn.wire.openai.chat.messages import Message
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.common import SamplingFields
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.errors import ApiError

_OPENAI = frozenset(
    {
        *("temperature", "top_p", "n", "stop", "seed", "logit_bias", "presence_penalty", "frequency_penalty"),
        *("max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "parallel_tool_calls"),
        *("response_format", "reasoning_effort", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
    }
)
"""Fields of OpenAI that go there as they are."""
_OF_KVARN = frozenset(
    {
        *("model", "messages", "prompt", "stream", "stream_options", "tools", "tool_choice", "functions"),
        *("function_call", "echo", "best_of", "suffix", "user", "safety_identifier", "metadata", "store"),
        *("service_tier", "priority", "cache_salt", "include_reasoning", "modalities", "prediction", "verbosity"),
        *("audio", "moderation", "web_search_options", "agent_hint", "retention_directives", "cache"),
    }
)
"""Fields that Kvarn acts on itself, or that are hints; who the client's users are stays here."""
_SAMPLING = frozenset({"top_k", "min_p", "repetition_penalty", "ignore_eos"})
_TEMPLATE = frozenset({"add_generation_prompt", "continue_final_message", "chat_template_kwargs"})
_VLLM = (
    _SAMPLING
    | _TEMPLATE
    | {
        *("min_tokens", "stop_token_ids", "bad_words", "allowed_token_ids", "include_stop_str_in_output"),
        *("skip_special_tokens", "add_special_tokens", "structured_outputs"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    }
)
_EXTENSIONS: dict[str, frozenset[str]] = {
    "openai": frozenset(),
    "ollama": frozenset(),
    "vllm": _VLLM,
    "kvarn": _VLLM,
    "sglang": _SAMPLING
    | {"min_tokens", "stop_token_ids", "skip_special_tokens", "continue_final_message", "chat_template_kwargs"},
    "llama_cpp": _SAMPLING | {"chat_template_kwargs"},
}
"""Further fields that each kind of server understands."""
_NEUTRAL: dict[str, tuple[object, ...]] = {"top_k": (0, -1), "min_p": (0,), "repetition_penalty": (1,)}
_NAMES = {("llama_cpp", "repetition_penalty"): "repeat_penalty"}
_HAS_SALT = ("vllm", "kvarn")
"""Servers that keep cached prompts of different salts apart."""


def chat_body(
    request: ChatCompletionRequest, model: str, config: ExternalConfig, max_output: int | None, cache_salt: str
) -> dict[str, Any]:
    """The body of a chat request to another server, whose name of the model is `model`. `max_output`: bound of the
    answer where the request has none; None: the server's own. `cache_salt` is sent where the server keeps salts apart.
    Raises `ApiError` 400 for a field that the server does not know."""
    body = _common_fields(request, model, config, cache_salt)
    body["messages"] = [_message(message, number) for number, message in enumerate(request.messages)]
    use = request.tool_use
    if use is not None:
        body["tools"] = [{"type": "function", "function": each.model_dump(exclude_none=True)} for each in use.functions]
        if use.named is not None:
            body["tool_choice"] = {"type": "function", "function": {"name": use.named}}
        elif use.forced:
            body["tool_choice"] = "required"
        if use.legacy:
            body["parallel_tool_calls"] = False
    else:
        body.pop("parallel_tool_calls", None)
    if max_output is not None:
        body["max_completion_tokens" if config.api == "openai" else "max_tokens"] = max_output
    return body


def completion_body(
    request: CompletionRequest, prompt: str | list[int], model: str, config: ExternalConfig, cache_salt: str
) -> dict[str, Any]:
    """The body of a text completion of one prompt; see `chat_body`."""
    if request.max_tokens == 0:
        raise _unknown("max_tokens", "is 0: nothing is known of the prompt of a model that another server runs.")
    if request.echo and request.logprobs is not None:
        raise _unknown("echo", "cannot go with 'logprobs' for a model that another server runs.")
    return _common_fields(request, model, config, cache_salt) | {"prompt": prompt}


def _common_fields(request: SamplingFields, model: str, config: ExternalConfig, cache_salt: str) -> dict[str, Any]:
    known = _OPENAI | _EXTENSIONS[config.api]
    body: dict[str, Any] = {"model": model}
    given = request.model_dump(by_alias=True, exclude_unset=True, exclude_none=True, exclude=set(_OF_KVARN))
    for name, value in given.items():
        if name in known:
            body[_NAMES.get((config.api, name), name)] = value
        elif value != type(request).model_fields[name].default and value not in _NEUTRAL.get(name, ()):
            raise _unknown(name, f"is not known to the server that runs this model ({config.api}).")
    if config.api in _HAS_SALT:
        body["cache_salt"] = cache_salt
    if config.streams:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _message(message: Message, number: int) -> dict[str, Any]:
    """A message as it came; functions in the form of tools."""
    data = message.model_dump(exclude_none=True)
    call_id = f"call_{number}"
    if (call := data.pop("function_call", None)) is not None:
        data["tool_calls"] = [{"id": call_id, "type": "function", "function": call}]
        data.setdefault("content", None)
    elif message.role == "function":
        return {"role": "tool", "tool_call_id": f"call_{number - 1}", "content": message.content or ""}
    if message.role == "assistant":
        data.pop("annotations", None)
        data.setdefault("content", None)
    return data


def _unknown(name: str, why: str) -> ApiError:
    return ApiError(400, f"{name!r} {why}", code="unsupported_parameter", param=name)
