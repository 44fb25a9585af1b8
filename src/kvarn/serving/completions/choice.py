"""One choice of a text completion: the echoed prompt, text, log-probabilities, why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from msgspec import UNSET, UnsetType

from kvarn.serving.choice import ChoiceDelta
from kvarn.serving.logprobs import LogprobsEncoder, in_parts
from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.completions import CompletionChoice, CompletionLogprobs
from kvarn.wire.openai.usage import PromptLogprobs


@dataclass(slots=True)
class Prompt:
    """A prompt as its choices show it."""

    token_ids: list[int]
    text: str
    """What `echo` puts before the answer; empty without it."""
    positions: list[PositionLogprobs | None] | None = None
    """Log-probabilities of its tokens, once the engine has sent them."""


@dataclass(frozen=True, slots=True)
class CompletionFields:
    """What of a choice the client asked for."""

    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: bool = False
    token_ids: bool = False
    skip_special_tokens: bool = True


class CompletionReader:
    """Reads the deltas of one choice into what a stream sends; `joined` makes one of all that was read."""

    def __init__(
        self, prompt: Prompt, fields: CompletionFields, tokenizer: Tokenizer, logprobs: LogprobsEncoder
    ) -> None:
        self._prompt = prompt
        self._fields = fields
        self._encoder = logprobs
        self._started = False
        self._offsets = _Offsets(prompt, fields, tokenizer)

    async def read(self, delta: ChoiceDelta) -> CompletionChoice:
        """The delta as a chunk of a stream; the first carries what is said of the prompt."""
        first, self._started = not self._started, True
        if delta.prompt_positions is not None:
            self._prompt.positions = delta.prompt_positions
        text = self._prompt.text + delta.text if first else delta.text
        if delta.refusal:  # this older shape has no field to say it in
            text += f"\n[{delta.refusal}]"
        wants_ids, top = self._fields.token_ids, self._fields.logprobs
        return CompletionChoice(
            index=delta.index,
            text=text,
            finish_reason=cast(Literal["stop", "length", "content_filter"] | None, delta.finish_reason),
            logprobs=None if top is None else await self._logprobs(delta, first, top),
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=delta.token_ids if wants_ids else UNSET,
            prompt_token_ids=self._prompt.token_ids if wants_ids and first else UNSET,
        )

    async def _logprobs(self, delta: ChoiceDelta, first: bool, top: int) -> CompletionLogprobs:
        token_ids = delta.token_ids[: len(delta.positions)]
        rows = list(zip(delta.positions, token_ids, self._offsets.of_answer(token_ids), strict=True))
        own = self._encoder.completion(rows, top)
        if not (first and self._fields.echo and self._prompt.positions is not None):
            return own
        before = list(zip(self._prompt.positions, self._prompt.token_ids, self._offsets.of_prompt(), strict=True))
        return _join_logprobs([*await in_parts(before, lambda part: self._encoder.completion(part, top)), own])

    async def joined(self, chunks: list[CompletionChoice]) -> CompletionChoice:
        """The whole choice from all its chunks."""
        last = chunks[-1]
        logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
        of_prompt: PromptLogprobs | UnsetType = UNSET
        if self._fields.prompt_logprobs and self._prompt.positions is not None:
            of_prompt = []
            for part in await in_parts(self._prompt.positions, self._encoder.prompt):
                of_prompt += part
        return CompletionChoice(
            index=last.index,
            text="".join(chunk.text for chunk in chunks),
            finish_reason=last.finish_reason,
            logprobs=_join_logprobs(logprobs) if logprobs else None,
            stop_reason=last.stop_reason,
            token_ids=[i for chunk in chunks for i in chunk.token_ids or ()] if self._fields.token_ids else UNSET,
            prompt_token_ids=chunks[0].prompt_token_ids,
            prompt_logprobs=of_prompt,
        )


class _Offsets:
    """Where tokens stand in a choice's text: special tokens are not in it, and a character may take several tokens."""

    def __init__(self, prompt: Prompt, fields: CompletionFields, tokenizer: Tokenizer) -> None:
        self._prompt = prompt
        self._skip = fields.skip_special_tokens
        self._tokenizer = tokenizer
        self._answer = IncrementalDetokenizer(tokenizer, skip_special_tokens=self._skip, after=prompt.token_ids)
        self._offset = len(prompt.text)

    def of_prompt(self) -> list[int]:
        """Of the echoed prompt's tokens."""
        offsets, _ = _walk(
            IncrementalDetokenizer(self._tokenizer, skip_special_tokens=self._skip), self._prompt.token_ids, 0
        )
        return offsets

    def of_answer(self, token_ids: Sequence[int]) -> list[int]:
        """Of the answer's next tokens."""
        offsets, self._offset = _walk(self._answer, token_ids, self._offset)
        return offsets


def _walk(detokenizer: IncrementalDetokenizer, token_ids: Sequence[int], offset: int) -> tuple[list[int], int]:
    """The offset before each token, and after the last."""
    offsets = []
    for token_id in token_ids:
        offsets.append(offset)
        offset += len(detokenizer.push((token_id,)))
    return offsets, offset


def _join_logprobs(parts: list[CompletionLogprobs]) -> CompletionLogprobs:
    tops = [part.top_logprobs for part in parts]
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        top_logprobs=None if None in tops else [entry for top in tops for entry in top or ()],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
