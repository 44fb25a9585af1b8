"""One choice of an answer: tokens in, text out, up to its stop string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Raw

from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.text.stop_strings import StopMatcher
from kvarn.wire.messages import FinishReason as EngineFinishReason
from kvarn.wire.messages import PositionLogprobs, TokenDelta
from kvarn.wire.openai.chat.answer import FinishReason, TokenLogprobs, ToolCallDelta

if TYPE_CHECKING:
    from kvarn.serving.moderation.output_watch import OutputWatch


@dataclass(slots=True)
class ChoiceDelta:
    """What is new of one choice: the form that an answer has from the engine's tokens to the client's bytes."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    """All tokens counted, the end token included."""
    positions: list[PositionLogprobs] = field(default_factory=list)
    """Log-probabilities of each token that is part of the text; empty where not asked for."""
    prompt_positions: list[PositionLogprobs | None] | None = None
    """The same of the prompt's tokens; with the first delta, where asked for."""
    finish_reason: FinishReason | None = None
    """Set in the last delta of the choice."""
    stop_reason: int | str | None = None
    """The stop string, or the stop token that the client named, which ended the choice."""
    refusal: str = ""
    """Why moderation ended the answer, in words for a person."""
    parts: list[str | ToolCallDelta] | None = None
    """Text and tool calls in the order in which the model wrote them; None where the chat has no tools."""
    logprobs: list[TokenLogprobs | Raw] | None = None
    """`positions` as a chat's answer has them; None where not asked for."""
    warnings: list[str] = field(default_factory=list)
    """What is wrong with the tool calls, at the end."""

    @property
    def tool_calls(self) -> list[ToolCallDelta]:
        """The tool calls among the parts."""
        return [part for part in self.parts or () if not isinstance(part, str)]


@dataclass(slots=True)
class Choice:
    """Turns the token deltas of one choice into deltas with text."""

    index: int
    """In the answer."""
    detokenizer: IncrementalDetokenizer
    """Its own, fresh."""
    stop: StopMatcher | None
    """Its own, fresh; None where the request has no stop strings."""
    min_tokens: int
    """Stop strings count from this many tokens on."""
    named_stop_ids: frozenset[int]
    """Stop tokens that the client asked for, to be told apart from the model's end tokens."""
    prompt_only: bool = False
    """The client wants no answer, only what is known of its prompt: the token drawn is dropped."""
    watch: OutputWatch | None = None
    """Its moderation."""
    transform: Callable[[ChoiceDelta], None] | None = None
    """Adds to its deltas what the endpoint needs; may end it by setting the finish reason."""
    ended: bool = False
    num_tokens: int = 0
    """Up to and including the one that completed a stop string."""

    def add(self, new: TokenDelta) -> ChoiceDelta:
        """What the tokens come to; must not be called after a delta with a finish reason."""
        delta = ChoiceDelta(self.index, prompt_positions=new.prompt_logprobs)
        if self.prompt_only:
            delta.finish_reason = "length"
            return delta
        shown = new.token_ids
        if new.finish_reason is EngineFinishReason.STOP:
            shown = shown[:-1]  # the stop token ends the text, it is not part of it
        text = ""
        for position, token_id in enumerate(shown):
            self.num_tokens += 1
            if new.logprobs is not None:
                delta.positions.append(new.logprobs[position])
            piece, matched = self.detokenizer.push((token_id,)), None
            if self.stop is not None and self.num_tokens >= self.min_tokens:
                piece, matched = self.stop.push(piece)
            text += piece
            if matched is not None:
                delta.token_ids = shown[: position + 1]
                delta.finish_reason, delta.stop_reason = "stop", matched
                break
        else:
            self.num_tokens += len(new.token_ids) - len(shown)
            delta.token_ids = new.token_ids
            if new.finish_reason is not None:
                text += self._finish(delta, new)
        delta.text = text
        return delta

    def _finish(self, delta: ChoiceDelta, new: TokenDelta) -> str:
        """End the choice as the engine did, unless the text held back till now completes a stop string."""
        text = self.detokenizer.flush()
        if self.stop is not None:
            if self.num_tokens >= self.min_tokens:
                text, matched = self.stop.push(text)
                if matched is not None:
                    delta.finish_reason, delta.stop_reason = "stop", matched
                    return text
            text += self.stop.flush()
        delta.finish_reason = "length" if new.finish_reason is EngineFinishReason.LENGTH else "stop"
        if delta.finish_reason == "stop" and new.token_ids and new.token_ids[-1] in self.named_stop_ids:
            delta.stop_reason = new.token_ids[-1]
        return text
