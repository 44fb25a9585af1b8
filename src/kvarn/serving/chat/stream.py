"""The chunks of a streamed chat answer, encoded."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from kvarn.serving.choice import ChoiceDelta
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


class ChunkEncoder:
    """Encodes the deltas of one choice as server-sent events.

    Args:
        head: Of the stream.
        index: The choice's number.
        opening: Text the answer begins with.
        legacy: The client speaks of functions, not of tools.
        with_token_ids: The client wants the token ids too.
    """

    def __init__(self, head: ChunkHead, index: int, opening: str, *, legacy: bool, with_token_ids: bool) -> None:
        self._head = head
        self._index = index
        self._legacy = legacy
        self._with_token_ids = with_token_ids
        self._opening = event(head.chunk([ChunkChoice(index=index, delta=Delta(role="assistant", content=opening))]))
        """Sent before the first delta."""
        self._texts = TextEvents(lambda text: head.chunk([ChunkChoice(index=index, delta=Delta(content=text))]))

    def encode(self, delta: ChoiceDelta) -> bytes:
        """The next delta; empty where it has nothing to send."""
        opening, self._opening = self._opening, b""
        only_text = delta.finish_reason is None and not delta.logprobs and not self._with_token_ids
        if only_text and not (delta.parts and delta.tool_calls):
            return opening + self._texts.event(delta.text) if delta.text else opening
        return opening + (self._legacy_events(delta) if self._legacy else self._chunk(delta, delta.text))

    def _chunk(self, delta: ChoiceDelta, text: str) -> bytes:
        calls = delta.tool_calls if not self._legacy else []
        choice = ChunkChoice(
            index=self._index,
            delta=Delta(content=text or UNSET, refusal=delta.refusal or UNSET, tool_calls=calls or UNSET),
            finish_reason=delta.finish_reason,
            logprobs=None if delta.logprobs is None else ChoiceLogprobs(content=delta.logprobs),
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=delta.token_ids if self._with_token_ids else UNSET,
        )
        return event(self._head.chunk([choice], warnings=delta.warnings))

    def _legacy_events(self, delta: ChoiceDelta) -> bytes:
        """A function call has no list to stand in: a chunk carries one piece of it, or of the text around it."""
        out, text = b"", ""
        for part in delta.parts or ():
            if isinstance(part, str):
                text += part
                continue
            before = [Delta(content=text)] if text else []
            for each in (*before, Delta(function_call=part.function)):
                out += event(self._head.chunk([ChunkChoice(index=self._index, delta=each)]))
            text = ""
        return out + self._chunk(delta, text)
