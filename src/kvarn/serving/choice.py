"""One choice of an answer: tokens in, text out, up to its stop string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.text.stop_strings import StopMatcher
from kvarn.wire.messages import FinishReason, PositionLogprobs, TokenDelta

EndReason = Literal["stop", "length", "content_filter"]


@dataclass(slots=True)
class Piece:
    """What one delta added to a choice."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    """All tokens counted, the end token included."""
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    """One for each token that is part of the text; empty where not asked for."""
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finish_reason: EndReason | None = None
    stop_reason: int | str | None = None
    """The stop string, or the stop token that the client named, which ended the choice."""
    notice: str = ""
    """What a person is told of an answer that was ended by moderation."""


class Choice:
    """Turns the deltas of one choice into pieces of text.

    Args:
        index: The choice's number in the answer.
        detokenizer: Its own, fresh.
        stop: Its own, fresh.
        min_tokens: Stop strings count from this many tokens on.
        named_stop_ids: Stop tokens that the client asked for, to be told apart from the model's end tokens.
        muted: The client wants no answer, only what is known of its prompt: the token drawn is dropped.
    """

    def __init__(
        self,
        index: int,
        detokenizer: IncrementalDetokenizer,
        stop: StopMatcher,
        min_tokens: int = 0,
        named_stop_ids: frozenset[int] = frozenset(),
        *,
        muted: bool = False,
    ) -> None:
        self.index = index
        self.num_tokens = 0
        """Tokens so far, up to and including the one that completed a stop string."""
        self.ended = False
        self.on_end: Callable[[], None] = lambda: None
        """Told when its reader ends it."""
        self._detokenizer = detokenizer
        self._stop = stop
        self._min_tokens = min_tokens
        self._named_stop_ids = named_stop_ids
        self._muted = muted

    def end(self) -> None:
        """Its reader has all that was asked for: what the engine still sends for it is not wanted."""
        if not self.ended:
            self.ended = True
            self.on_end()

    def add(self, delta: TokenDelta) -> Piece:
        """Take a delta; must not be called once the choice has ended."""
        piece = Piece(self.index, prompt_logprobs=delta.prompt_logprobs)
        if self._muted:
            self.ended = True
            piece.finish_reason = "length"
            return piece
        shown = delta.token_ids
        if delta.finish_reason is FinishReason.STOP:
            shown = shown[:-1]  # the stop token ends the text, it is not part of it
        text: list[str] = []
        for position, token_id in enumerate(shown):
            self.num_tokens += 1
            if delta.logprobs is not None:
                piece.logprobs.append(delta.logprobs[position])
            new, matched = self._watch(self._detokenizer.push((token_id,)))
            text.append(new)
            if matched is not None:
                self.ended = True
                piece.token_ids = shown[: position + 1]
                piece.finish_reason, piece.stop_reason = "stop", matched
                break
        else:
            self.num_tokens += len(delta.token_ids) - len(shown)
            piece.token_ids = delta.token_ids
            if delta.finish_reason is not None:
                text.append(self._finish(piece, delta))
        piece.text = "".join(text)
        return piece

    def _watch(self, text: str) -> tuple[str, str | None]:
        """What may be shown of new text, and the stop string in it, if any."""
        return (text, None) if self.num_tokens < self._min_tokens else self._stop.push(text)

    def _finish(self, piece: Piece, delta: TokenDelta) -> str:
        """End the choice as the engine did, unless the text held back till now completes a stop string."""
        self.ended = True
        text, matched = self._watch(self._detokenizer.flush())
        if matched is not None:
            piece.finish_reason, piece.stop_reason = "stop", matched
            return text
        piece.finish_reason = "length" if delta.finish_reason is FinishReason.LENGTH else "stop"
        if piece.finish_reason == "stop" and delta.token_ids and delta.token_ids[-1] in self._named_stop_ids:
            piece.stop_reason = delta.token_ids[-1]
        return text + self._stop.flush()
