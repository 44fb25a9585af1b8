"""Answers of servers with OpenAI's API: what they have in common, and no more is asked of them than that.

One form holds a whole chat or text completion, and a part of the stream of either.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec

from kvarn.external.errors import ExternalFailedError, error_of_event

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Largest event, or answer that is not streamed."""


class FunctionPart(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCallPart(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: FunctionPart = FunctionPart()


class MessagePart(msgspec.Struct, frozen=True):
    content: str | list[Any] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallPart] | None = None


class LogprobsPart(msgspec.Struct, frozen=True):
    """Log-probabilities as a chat has them (`content`), or as a text completion has."""

    content: list[msgspec.Raw] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] | None = None


class ChoicePart(msgspec.Struct, frozen=True):
    index: int = 0
    delta: MessagePart | None = None
    message: MessagePart | None = None
    text: str | None = None
    logprobs: LogprobsPart | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class ReportedUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class AnswerPart(msgspec.Struct, frozen=True):
    choices: list[ChoicePart] = []
    usage: ReportedUsage | None = None
    error: Any = None


class EmbeddingPart(msgspec.Struct, frozen=True):
    """One vector: numbers, or base64 of float32 little-endian bytes."""

    embedding: list[float] | str
    index: int = 0


class EmbeddingAnswer(msgspec.Struct, frozen=True):
    data: list[EmbeddingPart]
    usage: ReportedUsage | None = None


_PART = msgspec.json.Decoder(AnswerPart)
_EMBEDDINGS = msgspec.json.Decoder(EmbeddingAnswer)


def read_part(data: bytes) -> AnswerPart:
    """An answer or a part of one. Raises `ExternalFailedError` where it is not in OpenAI's form or tells of a failure,
    `ExternalRefusedError` where it says that the request cannot be answered."""
    try:
        part = _PART.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ExternalFailedError(f"its answer cannot be read: {error}") from None
    if part.error:
        raise error_of_event(part.error)
    return part


def read_embeddings(data: bytes) -> EmbeddingAnswer:
    try:
        return _EMBEDDINGS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ExternalFailedError(f"its answer cannot be read: {error}") from None


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The data of server-sent events, up to `[DONE]` or the stream's end."""
    rest, data = b"", b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) + len(data) > MAX_EVENT_BYTES:
            raise ExternalFailedError(f"an event of its stream is longer than {MAX_EVENT_BYTES} bytes")
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                data += line[5:].strip()
            elif not line and data:
                if data == b"[DONE]":
                    return
                yield data
                data = b""
    if data and data != b"[DONE]":  # its last event lacks the empty line
        yield data
