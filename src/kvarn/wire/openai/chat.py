"""The request of `/v1/chat/completions`.

Every field of OpenAI's `CreateChatCompletionRequest` stands in `ChatCompletionRequest`: honoured, taken as a hint, or
refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from kvarn.wire.openai.common import (
    Metadata,
    RequestModel,
    SamplingFields,
    disagreement,
    only,
    refused,
)


class TextPart(RequestModel):
    """A piece of a message's content. Text is the only kind served."""

    type: Annotated[Literal["text"], only("text", why="Only content parts of type 'text' are supported.")]
    text: str


Parts = Annotated[list[TextPart], Field(fail_fast=True, min_length=1)]


class SystemMessage(RequestModel):
    """Instructions; `developer` is OpenAI's newer name of the same."""

    role: Literal["system", "developer"]
    content: str | Parts
    name: str | None = None


class UserMessage(RequestModel):
    """What the user says."""

    role: Literal["user"]
    content: str | Parts
    name: str | None = None


class FunctionCallArguments(RequestModel):
    """A function's name and its arguments as JSON text."""

    name: str
    arguments: str


class EarlierToolCall(RequestModel):
    """A call the model made in an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCallArguments


class AssistantMessage(RequestModel):
    """What the model said in an earlier turn."""

    role: Literal["assistant"]
    content: str | Parts | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[EarlierToolCall], Field(fail_fast=True)] | None = None
    annotations: list[Any] | None = None
    """Sent back by clients that echo an answer; not shown to the model."""
    reasoning_content: str | None = None
    audio: Annotated[None, refused("'audio' in messages is not supported.")] = None
    function_call: Annotated[None, refused("'function_call' in messages is not supported: use 'tool_calls'.")] = None


class ToolMessage(RequestModel):
    """The result of a tool call."""

    role: Literal["tool"]
    content: str | Parts
    tool_call_id: str
    name: str | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1)]


class FunctionDefinition(RequestModel):
    """A function the model may call; `parameters` is a JSON schema."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[bool | None, only(False, why="'strict' function schemas are not supported yet.")] = None


class Tool(RequestModel):
    """A tool the model may use."""

    type: Annotated[Literal["function"], only("function", why="Only tools of type 'function' are supported.")]
    function: FunctionDefinition


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=128)]


class ResponseFormat(RequestModel):
    """The form of the answer."""

    type: Literal["text"]


def _check_response_format(value: object) -> object:
    if isinstance(value, dict) and value.get("type") in ("json_object", "json_schema"):
        why = f"'response_format' of type {value['type']!r} is not supported yet: use 'text'."
        raise PydanticCustomError("unsupported_value", "{why}", {"why": why})
    return value


_TEMPLATE_FIELDS = ("add_generation_prompt", "continue_final_message", "messages", "tools")


def _check_template_kwargs(value: object) -> object:
    taken = [name for name in _TEMPLATE_FIELDS if isinstance(value, dict) and name in value]
    if taken:
        why = f"'chat_template_kwargs' may not hold {taken[0]!r}: it is a field of the request."
        raise PydanticCustomError("unsupported_value", "{why}", {"why": why})
    return value


TemplateKwargs = Annotated[dict[str, Any], BeforeValidator(_check_template_kwargs)]


class ChatCompletionRequest(SamplingFields):
    """The body of a chat completion request."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Tools | None = None
    tool_choice: Annotated[
        Literal["none", "auto"] | None,
        only("none", "auto", why="'tool_choice' may only be 'none' or 'auto': forced calls are not supported yet."),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None,
        only(True, why="'parallel_tool_calls' may only be true: the model decides how many calls it makes."),
    ] = None
    response_format: Annotated[ResponseFormat | None, BeforeValidator(_check_response_format)] = None
    modalities: Annotated[list[str] | None, only(["text"], why="'modalities' may only be ['text'].")] = None
    metadata: Metadata | None = None
    store: Annotated[bool | None, only(False, why="'store' is not supported: leave it out or false.")] = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "priority", "fast"] | None,
        only(
            *("auto", "default", "flex", "priority", "fast"),
            why="'service_tier' may be 'auto', 'default', 'flex', 'priority' or 'fast'.",
        ),
    ] = None

    # Hints: they may be ignored without harm.
    safety_identifier: str | None = Field(None, max_length=64)
    prompt_cache_key: str | None = None
    prompt_cache_retention: Annotated[
        str | None, only("in_memory", why="'prompt_cache_retention' may only be 'in_memory'.")
    ] = None

    # OpenAI's fields that Kvarn does not serve.
    audio: Annotated[None, refused("'audio' is not supported: this server speaks text.")] = None
    function_call: Annotated[None, refused("'function_call' is not supported: use 'tool_choice'.")] = None
    functions: Annotated[None, refused("'functions' is not supported: use 'tools'.")] = None
    moderation: Annotated[None, refused("'moderation' is not supported.")] = None
    prediction: Annotated[None, refused("'prediction' is not supported.")] = None
    prompt_cache_options: Annotated[None, refused("'prompt_cache_options' is not supported: caching is automatic.")] = (
        None
    )
    reasoning_effort: Annotated[None, refused("'reasoning_effort' is not supported by this model.")] = None
    verbosity: Annotated[None, refused("'verbosity' is not supported by this model.")] = None
    web_search_options: Annotated[None, refused("'web_search_options' is not supported.")] = None

    # Extensions, with vLLM's names and meanings.
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: TemplateKwargs | None = None
    echo: bool = False
    """Begin the answer with the last message, where that is continued."""

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise disagreement("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            raise disagreement(
                "'continue_final_message' and 'add_generation_prompt' cannot both be true.", "continue_final_message"
            )
        if self.echo and not self.continue_final_message:
            raise disagreement("'echo' in chat needs 'continue_final_message'.", "echo")
        return self

    @property
    def active_tools(self) -> list[dict[str, Any]] | None:
        """The tools shown to the model, as plain data; None where there are none or `tool_choice` is `none`."""
        if not self.tools or self.tool_choice == "none":
            return None
        return [tool.model_dump(exclude_none=True) for tool in self.tools]

    @property
    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages as plain data, for the chat template."""
        return [message.model_dump(exclude_unset=True) for message in self.messages]
