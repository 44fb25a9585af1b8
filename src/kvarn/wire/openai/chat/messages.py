"""The messages of a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_serializer

from kvarn.wire.openai.common import Refused, RequestModel, disagreement, only

_ECHO = ConfigDict(extra="ignore")
"""Clients send back what they have added to an answer (LiteLLM `provider_specific_fields`): no model is shown it. There
is no warning, since a look at each of 20,000 messages takes longer than to validate them."""


class TextPart(RequestModel):
    """A piece of a message's content. Text is the only kind served."""

    type: Annotated[Literal["text"], only("text", why="Only content parts of type 'text' are supported.")]
    text: str
    cache_control: dict[str, Any] | None = Field(None, exclude=True)
    """A hint, as `prompt_cache_breakpoint` is: prompts are cached wherever they have been seen before."""
    prompt_cache_breakpoint: dict[str, Any] | None = Field(None, exclude=True)


class EchoedText(RequestModel):
    """A text that the model wrote, with what was said about it (`annotations`)."""

    model_config = _ECHO

    type: Literal["text"]
    text: str


class EchoedRefusal(RequestModel):
    """A refusal that the model wrote: text like any other to the model that reads it."""

    model_config = _ECHO

    type: Literal["refusal"]
    refusal: str

    @model_serializer
    def _as_text(self) -> dict[str, str]:
        return {"type": "text", "text": self.refusal}


Parts = Annotated[list[TextPart], Field(fail_fast=True)]
EchoedPart = Annotated[EchoedText | EchoedRefusal, Field(discriminator="type")]
EchoedParts = Annotated[list[EchoedPart], Field(fail_fast=True)]


class PlainMessage(RequestModel):
    """Message of the user, or instructions; `developer` is OpenAI's newer name of `system`."""

    role: Literal["user", "system", "developer"]
    content: str | Parts
    name: str | None = None


class FunctionCallArguments(RequestModel):
    name: str
    arguments: str


class EarlierToolCall(RequestModel):
    model_config = _ECHO

    id: str
    type: Annotated[Literal["function"], only("function", why="Only tool calls of type 'function' are supported.")] = (
        "function"
    )
    function: FunctionCallArguments


class AssistantMessage(RequestModel):
    model_config = _ECHO

    role: Literal["assistant"]
    content: str | EchoedParts | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[EarlierToolCall], Field(fail_fast=True)] | None = None
    annotations: list[Any] | None = None  # sent back by clients that echo an answer; not shown to the model
    reasoning_content: str | None = None  # what it thought: shown to the model where its template does so
    reasoning: str | None = None  # the same by vLLM's newer name
    audio: Refused = None
    function_call: FunctionCallArguments | None = None  # what `tool_calls` was before 2023-11


class ToolMessage(RequestModel):
    role: Literal["tool"]
    content: str | Parts
    tool_call_id: str
    name: str | None = None


class FunctionMessage(RequestModel):
    """The result of the last `function_call`: what `tool` was before 2023-11."""

    role: Literal["function"]
    content: str | None
    name: str


Message = Annotated[PlainMessage | AssistantMessage | ToolMessage | FunctionMessage, Field(discriminator="role")]
Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1)]


def check_tool_results(messages: Sequence[Message]) -> None:
    """Refuse results that belong to no call before them. Raises `PydanticCustomError`."""
    calls: set[str] = set()
    functions = False
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            calls.update(call.id for call in message.tool_calls or ())
            functions = functions or message.function_call is not None
        elif isinstance(message, ToolMessage) and message.tool_call_id not in calls:
            where = f"messages[{index}].tool_call_id"
            shown = message.tool_call_id[:80]
            raise disagreement(f"{where!r} is {shown!r}: no message before it makes a tool call of that id.", where)
        elif isinstance(message, FunctionMessage) and not functions:
            where = f"messages[{index}].role"
            raise disagreement(f"{where!r} is 'function', but no message before it has a 'function_call'.", where)


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as plain data, for the chat template; functions in the form of tools."""
    plain: list[dict[str, Any]] = []
    function_calls = 0
    for message in messages:
        data = message.model_dump(exclude_unset=True)
        if (reasoning := data.pop("reasoning", None)) is not None:  # templates know the older name
            data["reasoning_content"] = data.get("reasoning_content") or reasoning
        if isinstance(message, AssistantMessage) and message.function_call is not None:
            function_calls += 1
            call = {"id": f"{function_calls:09}", "type": "function", "function": data.pop("function_call")}
            data["tool_calls"] = [*(data.get("tool_calls") or ()), call]
        elif isinstance(message, FunctionMessage):
            data |= {"role": "tool", "tool_call_id": f"{function_calls:09}", "content": message.content or ""}
        plain.append(data)
    return plain
