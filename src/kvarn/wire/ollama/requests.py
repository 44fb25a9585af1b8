"""The requests of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from kvarn.wire.ollama.options import AnswerRequest, WorkRequest
from kvarn.wire.openai.common import RequestModel, Strings, TokenIds, refused

_ECHO = ConfigDict(extra="ignore")  # clients send back what they have added to an answer


Images = Annotated[None, refused("the models of this server read text")]


class CalledFunction(RequestModel):
    model_config = _ECHO

    name: str
    arguments: dict[str, Any] | str | None = None


class EarlierCall(RequestModel):
    model_config = _ECHO

    id: str | None = None
    function: CalledFunction


class Message(RequestModel):
    model_config = _ECHO

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    ]
    content: str | None = None
    thinking: str | None = None  # what the model thought in an earlier turn
    images: Images = None
    tool_calls: Annotated[list[EarlierCall] | None, Field(fail_fast=True)] = None
    tool_name: str | None = None  # of the function whose result this is
    tool_call_id: str | None = None  # the call whose result it is; without it the first of that name without a result


class Function(RequestModel):
    model_config = _ECHO

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(RequestModel):
    model_config = _ECHO

    type: Literal["function"] | None = None
    function: Function


class ChatRequest(AnswerRequest):
    """The body of `/api/chat`; without messages it has the model loaded."""

    messages: Annotated[list[Message] | None, Field(fail_fast=True)] = None
    tools: Annotated[list[Tool] | None, Field(fail_fast=True, max_length=128)] = None


class GenerateRequest(AnswerRequest):
    """The body of `/api/generate`; without a prompt it has the model loaded."""

    prompt: str | None = None
    system: str | None = None
    context: TokenIds | None = None  # tokens of the turns before, as the last answer sent them
    raw: bool | None = None  # the prompt is what the model reads, without its template
    images: Images = None
    template: Annotated[None, refused("send the finished prompt with 'raw', or leave it to the model's own")] = None
    suffix: Annotated[None, refused("these models do not fill in")] = None


class EmbedRequest(WorkRequest):
    """The body of `/api/embed`; without input it has the model loaded."""

    input: str | Strings | None = None
    truncate: bool | None = None  # cut what is longer than the model's context, unless it is false
    dimensions: int | None = Field(None, ge=0)

    @property
    def texts(self) -> list[str]:
        return ([self.input] if self.input else []) if isinstance(self.input, str) else self.input or []


class EmbeddingsRequest(WorkRequest):
    """The body of `/api/embeddings`, which is older."""

    prompt: str | None = None
