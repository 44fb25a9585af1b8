"""The chunks of a streamed chat answer, encoded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from msgspec import UNSET, UnsetType

from kvarn.serving.chat.choice import ChatParts, ChatReader
from kvarn.serving.choice import Piece
from kvarn.serving.pipeline import TokenUsage
from kvarn.wire.openai.chat.answer import ChatCompletionChunk, ChoiceLogprobs, ChunkChoice, Delta
from kvarn.wire.openai.usage import Usage
from kvarn.wire.sse import TextEvents, event


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """What all chunks of a stream have in common."""

    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool
    service_tier: str | UnsetType = UNSET
    """The tier it is served in, where the client named one."""

    def chunk(
        self, choices: list[ChunkChoice], usage: Usage | None = None, warnings: list[str] | None = None
    ) -> ChatCompletionChunk:
        """One chunk of the stream."""
        return ChatCompletionChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            service_tier=self.service_tier,
            usage=usage if self.include_usage else UNSET,
            warnings=warnings or UNSET,
        )


class Listener(Protocol):
    """Hears what a stream sends, before the client does."""

    def take(self, index: int, parts: ChatParts) -> None:
        """More of choice `index`."""
        ...

    async def end(self) -> list[str]:
        """All choices are complete. Returns warnings for the client."""
        ...


async def stream_chat(
    head: ChunkHead,
    pieces: AsyncGenerator[Piece, None],
    readers: list[ChatReader],
    usage: TokenUsage,
    listener: Listener | None = None,
) -> AsyncGenerator[bytes, None]:
    """Encode a chat answer as it comes; closing this closes `pieces`.

    Each choice begins with its role and ends with its finish reason; where usage is asked for, it comes last of all, in
    a chunk without choices.
    """
    texts = [_text_events(head, index) for index in range(len(readers))]
    started = [False] * len(readers)
    running = len(readers)
    async with aclosing(pieces):
        async for piece in pieces:
            index = piece.index
            parts = readers[index].read(piece)
            out = b""
            if not started[index]:
                started[index] = True
                opening = Delta(role="assistant", content=readers[index].opening)
                out = event(head.chunk([ChunkChoice(index=index, delta=opening)]))
            running -= parts.finish_reason is not None
            if listener is not None:
                listener.take(index, parts)
                if not running:
                    parts.warnings += await listener.end()
            if parts.only_text:
                out += texts[index].event(parts.content) if parts.content else b""
            else:
                out += _events(head, index, parts, legacy=readers[index].legacy)
            if out:
                yield out
        if head.include_usage:
            yield event(head.chunk([], usage.as_openai()))


def _text_events(head: ChunkHead, index: int) -> TextEvents:
    return TextEvents(lambda text: head.chunk([ChunkChoice(index=index, delta=Delta(content=text))]))


def _events(head: ChunkHead, index: int, parts: ChatParts, *, legacy: bool) -> bytes:
    if not legacy:
        return event(head.chunk([_chunk_choice(index, parts, _delta(parts))], warnings=parts.warnings))
    # A function call has no list to stand in: a chunk carries one piece of it, or of the text around it.
    out, text = b"", ""
    for part in parts.ordered:
        if isinstance(part, str):
            text += part
            continue
        before = [Delta(content=text)] if text else []
        for delta in (*before, Delta(function_call=part.function)):
            out += event(head.chunk([ChunkChoice(index=index, delta=delta)]))
        text = ""
    last = Delta(content=text or UNSET, refusal=parts.refusal or UNSET)
    return out + event(head.chunk([_chunk_choice(index, parts, last)], warnings=parts.warnings))


def _delta(parts: ChatParts) -> Delta:
    return Delta(content=parts.content or UNSET, refusal=parts.refusal or UNSET, tool_calls=parts.tool_calls or UNSET)


def _chunk_choice(index: int, parts: ChatParts, delta: Delta) -> ChunkChoice:
    return ChunkChoice(
        index=index,
        delta=delta,
        finish_reason=parts.finish_reason,
        logprobs=None if parts.logprobs is None else ChoiceLogprobs(content=parts.logprobs),
        stop_reason=UNSET if parts.finish_reason is None else parts.stop_reason,
        token_ids=UNSET if parts.token_ids is None else parts.token_ids,
    )
