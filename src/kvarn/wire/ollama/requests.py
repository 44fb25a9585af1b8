"""The requests of Ollama's API, and the `options` in them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo

from kvarn.wire.openai.common import (
    LenientModel,
    RequestModel,
    Strings,
    TokenIds,
    ignored,
    refused,
    validation_error,
    warn_ignored,
)
from kvarn.wire.sampling import MAX_INT


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int | None, BeforeValidator(_whole)]  # a whole number, which clients may write as `128.0`
Hint = object  # says how Ollama loads a model: there is nothing of it to decide here

_WHOLE_TEXT = "ignored 'options.repeat_last_n', penalties look at the whole text"
_OTHER_SAMPLER = "ignored 'options.{}', this server does not draw so"


_LEAST_TOP_P = 1e-6  # keeps the likeliest token only, as 0 does in Ollama


def _between(least: float, most: float) -> AfterValidator:
    """Marks an option that Ollama takes beyond what can be drawn with here: the nearest bound is taken, with a
    warning."""

    def clamp(value: float | None, info: ValidationInfo) -> float | None:
        if value is None or least <= value <= most:
            return value
        nearest = min(max(value, least), most)
        warn_ignored(info, f"changed 'options.{info.field_name}' to {nearest:g}, the nearest value that is served")
        return nearest

    return AfterValidator(clamp)


def _positive(value: object, info: ValidationInfo) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
        warn_ignored(info, "ignored 'options.repeat_penalty', it must be above 0 (1 is none)")
        return None
    return value


def _without_empty(stop: str | list[str] | None) -> str | list[str] | None:
    return [text for text in stop if text] if isinstance(stop, list) else stop


class Options(LenientModel):
    """Sampling parameters, and settings of Ollama's loader that have no effect."""

    temperature: Annotated[float | None, _between(0, 2)] = None
    top_k: Annotated[Whole, _between(-MAX_INT, MAX_INT)] = None  # 0 or below: all tokens
    top_p: Annotated[float | None, _between(_LEAST_TOP_P, 1)] = None
    min_p: Annotated[float | None, _between(0, 1)] = None
    seed: Annotated[Whole, _between(-(2**63), 2**64 - 1)] = None  # -1: one that the server draws
    stop: Annotated[str | Strings | None, AfterValidator(_without_empty)] = None
    num_predict: Annotated[Whole, _between(-MAX_INT, MAX_INT)] = None  # 0 or below: all that the context has room for
    repeat_penalty: Annotated[float | None, BeforeValidator(_positive), _between(0, 100)] = None
    presence_penalty: Annotated[float | None, _between(-2, 2)] = None
    frequency_penalty: Annotated[float | None, _between(-2, 2)] = None
    num_ctx: Whole = None  # of no effect: the context is the model's

    repeat_last_n: Annotated[Any, ignored(_WHOLE_TEXT, 0, -1, 64)] = None  # 0: no penalty; 64: Ollama's default
    mirostat: Annotated[Any, ignored(_OTHER_SAMPLER.format("mirostat"), 0)] = None
    typical_p: Annotated[Any, ignored(_OTHER_SAMPLER.format("typical_p"), 1)] = None
    tfs_z: Annotated[Any, ignored(_OTHER_SAMPLER.format("tfs_z"), 1)] = None
    mirostat_tau: Hint = None
    mirostat_eta: Hint = None
    penalize_newline: Hint = None
    num_keep: Hint = None
    num_batch: Hint = None
    num_gpu: Hint = None
    num_thread: Hint = None
    main_gpu: Hint = None
    low_vram: Hint = None
    f16_kv: Hint = None
    numa: Hint = None
    use_mmap: Hint = None
    use_mlock: Hint = None
    vocab_only: Hint = None
    logits_all: Hint = None
    embedding_only: Hint = None
    draft_num_predict: Hint = None

    @property
    def max_tokens(self) -> int | None:
        """Tokens of the answer at most; None: as many as there is room for."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None


def _check_format(value: object) -> object:
    if isinstance(value, str) and value not in ("", "json"):
        raise validation_error("unsupported_value", "'format' may only be 'json' or a JSON schema.")
    return None if value == "" else value


Format = Annotated[Literal["json"] | dict[str, Any] | None, BeforeValidator(_check_format)]
"""Any JSON (`json`), or JSON that a schema describes."""
Think = bool | Literal["low", "medium", "high", "max", "none", "minimal", "xhigh"] | None
"""Whether to reason, or how much."""


class ModelRequest(RequestModel):
    """A request about a model: its name, in older clients as `name`, and whether progress is told in a stream."""

    model_config = ConfigDict(extra="ignore")  # what else there is says how to get or make the model

    model: str | None = None
    name: str | None = None
    stream: bool | None = None

    @property
    def model_name(self) -> str:
        return self.model or self.name or ""


class WorkRequest(LenientModel):
    model: str = Field(min_length=1)
    options: Options | None = None
    keep_alive: int | float | str | None = None  # of no effect: the server decides which models are loaded

    @property
    def unloads(self) -> bool:
        """Whether the model may go: `keep_alive` is 0, `"0"` or `"0s"`."""
        given = self.keep_alive
        return given == 0 or (isinstance(given, str) and re.fullmatch(r"0+(\.0*)?[a-zµ]*", given) is not None)


class AnswerRequest(WorkRequest):
    fields_that_may_be_empty = frozenset({"format"})

    stream: bool | None = None  # as lines of JSON, unless it is false
    format: Format = None
    think: Think = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncate: bool | None = None  # leave out the oldest messages of a chat that is too long, unless it is false
    shift: Annotated[bool | None, ignored("ignored 'shift', an answer ends where the context does", False)] = None

    @property
    def streams(self) -> bool:
        return self.stream is not False

    @property
    def sampling(self) -> Options:
        return self.options or Options()


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
