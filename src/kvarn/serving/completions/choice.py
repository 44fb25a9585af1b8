"""One choice of a text completion: the echoed prompt, text, log-probabilities, why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from msgspec import UNSET

from kvarn.serving.choice import ChoiceDelta
from kvarn.serving.logprobs import in_parts
from kvarn.serving.models import ReadyModel
from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.completions import CompletionChoice, CompletionLogprobs, CompletionRequest


@dataclass(slots=True)
class Prompt:
    """A prompt as its choices show it."""

    token_ids: list[int]
    text: str
    """What `echo` puts before the answer; empty without it."""
    positions: list[PositionLogprobs | None] | None = None
    """Log-probabilities of its tokens, once the engine has sent them."""


class CompletionReader:
    """Reads the deltas of one choice into what a stream sends; `joined` makes one of all that was read."""

    def __init__(self, prompt: Prompt, request: CompletionRequest, model: ReadyModel) -> None:
        self._prompt = prompt
        self._request = request
        self._text = model.text
        self._started = False
        self._answer = self._detokenizer(after=prompt.token_ids)
        self._offset = len(prompt.text)

    async def read(self, delta: ChoiceDelta) -> CompletionChoice:
        """The delta as a chunk of a stream; the first carries what is said of the prompt."""
        first, self._started = not self._started, True
        if delta.prompt_positions is not None:
            self._prompt.positions = delta.prompt_positions
        text = self._prompt.text + delta.text if first else delta.text
        if delta.refusal:  # this older shape has no field to say it in
            text += f"\n[{delta.refusal}]"
        wants_ids, top = self._request.return_token_ids, self._request.logprobs
        return CompletionChoice(
            index=delta.index,
            text=text,
            finish_reason=cast(Literal["stop", "length", "content_filter"] | None, delta.finish_reason),
            logprobs=None if top is None else await self._logprobs(delta, first, top),
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=delta.token_ids if wants_ids else UNSET,
            prompt_token_ids=self._prompt.token_ids if wants_ids and first else UNSET,
        )

    async def joined(self, chunks: list[CompletionChoice]) -> CompletionChoice:
        """The whole choice from all its chunks."""
        last, positions = chunks[-1], self._prompt.positions
        logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
        wants_ids, wants_prompt = self._request.return_token_ids, self._request.prompt_logprobs is not None
        return CompletionChoice(
            index=last.index,
            text="".join(chunk.text for chunk in chunks),
            finish_reason=last.finish_reason,
            logprobs=_join_logprobs(logprobs) if logprobs else None,
            stop_reason=last.stop_reason,
            token_ids=[i for chunk in chunks for i in chunk.token_ids or ()] if wants_ids else UNSET,
            prompt_token_ids=chunks[0].prompt_token_ids,
            prompt_logprobs=await self._text.logprobs.prompt(positions) if wants_prompt and positions else UNSET,
        )

    async def _logprobs(self, delta: ChoiceDelta, first: bool, top: int) -> CompletionLogprobs:
        token_ids, encoder = delta.token_ids[: len(delta.positions)], self._text.logprobs
        offsets, self._offset = _offsets(self._answer, token_ids, self._offset)
        own = encoder.completion(list(zip(delta.positions, token_ids, offsets, strict=True)), top)
        if not (first and self._request.echo and self._prompt.positions is not None):
            return own
        offsets, _ = _offsets(self._detokenizer(), self._prompt.token_ids, 0)
        rows = list(zip(self._prompt.positions, self._prompt.token_ids, offsets, strict=True))
        return _join_logprobs([*[encoder.completion(part, top) async for part in in_parts(rows)], own])

    def _detokenizer(self, after: Sequence[int] = ()) -> IncrementalDetokenizer:
        skip = self._request.skip_special_tokens
        return IncrementalDetokenizer(self._text.tokenizer, skip_special_tokens=skip, after=after)


def _offsets(detokenizer: IncrementalDetokenizer, token_ids: Sequence[int], offset: int) -> tuple[list[int], int]:
    """Where tokens stand in a choice's text, and where the next one will: special tokens are not in it, and a character
    may take several tokens."""
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
