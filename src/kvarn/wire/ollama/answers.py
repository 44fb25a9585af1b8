"""The answers of Ollama's API. Durations are nanoseconds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from kvarn.wire.openai.chat.answer import TokenLogprobs

Logprobs = list[TokenLogprobs | msgspec.Raw] | UnsetType


class Call(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    name: str
    arguments: dict[str, Any]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    function: Call


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    role: str = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, or a line of its stream; from `done_reason` on there is nothing before the last."""

    model: str
    created_at: datetime
    done: bool
    logprobs: Logprobs = UNSET
    done_reason: str | UnsetType = UNSET  # `stop`, `length`, `content_filter`, `load` or `unload`
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET  # until the engine got it
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET  # until the first token
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET  # what is not as it was asked for (an extension)


class ChatAnswer(Answer, frozen=True, kw_only=True):
    message: AnswerMessage


class GenerateAnswer(Answer, frozen=True, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET  # tokens of prompt and answer


class EmbedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/api/embed`: vectors of length 1."""

    model: str
    embeddings: list[list[float]]
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET


class EmbeddingsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/api/embeddings`: one vector."""

    embedding: list[float]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    family: str
    families: list[str]
    parameter_size: str  # such as `7.6B`
    quantization_level: str  # such as `BF16`
    parent_model: str = ""
    format: str = "safetensors"
    context_length: int | UnsetType = UNSET
    embedding_length: int | UnsetType = UNSET


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model, adapter or route. `size` is that of the weights, `expires_at` never comes."""

    name: str
    model: str
    digest: str
    details: Details
    size: int = 0
    modified_at: datetime | UnsetType = UNSET
    capabilities: list[str] | UnsetType = UNSET
    expires_at: datetime | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class ModelsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/api/tags` and `/api/ps`."""

    models: list[ListedModel]


class ShowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/api/show`."""

    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: datetime
    modelfile: str
    parameters: str  # a line for each
    template: str
    license: str = ""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The version of Ollama whose API this is, which clients ask before they use what is new, and the server's own."""

    version: str
    kvarn: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    status: str
