"""The answer of a text completion: as a stream, or gathered into one object."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from msgspec import UNSET

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.turn import Deltas, TokenUsage
from kvarn.text.logprobs import encoded_bytes
from kvarn.wire.openai.completions import Completion, CompletionChoice
from kvarn.wire.openai.usage import Usage
from kvarn.wire.sse import TextEvents, event


class ChunkReader(Protocol):
    async def read(self, delta: ChoiceDelta) -> CompletionChoice:
        """The delta as a chunk of a stream; the first carries what is said of the prompt."""
        ...

    async def joined(self, chunks: list[CompletionChoice]) -> CompletionChoice: ...


@dataclass(frozen=True, slots=True)
class CompletionRun:
    """A completion that has been taken: choice `i` of prompt `p` has number `p * n + i`. Let `stream` or `collect` run
    it."""

    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool
    deltas: Deltas
    readers: Sequence[ChunkReader]
    usage: TokenUsage
    held: HeldBytes  # counts what of the answer is gathered before it is sent

    async def collect(self) -> Completion:
        chunks: list[list[CompletionChoice]] = [[] for _ in self.readers]
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                chunk = await self.readers[delta.index].read(delta)
                if chunk.logprobs is not None and chunk.logprobs.top_logprobs is not None:
                    self.held.take(encoded_bytes(chunk.logprobs.top_logprobs))
                chunks[delta.index].append(chunk)
        choices = []
        for reader, read in zip(self.readers, chunks, strict=True):
            choices.append(await reader.joined(read))
            self.held.take(encoded_bytes(choices[-1].prompt_logprobs or ()))
        return self._completion(choices, self.usage.as_openai(), whole=True)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        texts = [TextEvents(partial(self._text_chunk, index)) for index in range(len(self.readers))]
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                choice = await self.readers[delta.index].read(delta)
                if choice.finish_reason is not None or choice.logprobs is not None or choice.token_ids is not UNSET:
                    yield event(self._completion([choice]))
                elif choice.text:
                    yield texts[delta.index].event(choice.text)
        if self.include_usage:
            yield event(self._completion([], self.usage.as_openai()))

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | None = None, whole: bool = False
    ) -> Completion:
        return Completion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=usage if whole or self.include_usage else UNSET,
        )

    def _text_chunk(self, index: int, text: str) -> Completion:
        return self._completion([CompletionChoice(index=index, text=text, finish_reason=None)])
