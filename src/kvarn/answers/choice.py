"""One choice of an answer: tokens in, text and reasoning out, up to its stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.text.reasoning.splitter import Part, Reasoning, ReasoningPhase, ReasoningSplitter, joined
from kvarn.text.stop_strings import StopMatcher
from kvarn.wire.messages import FinishReason as EngineFinishReason
from kvarn.wire.messages import PositionLogprobs, TokenDelta
from kvarn.wire.openai.chat.answer import FinishReason, TokenLogprobs, ToolCallDelta
from kvarn.wire.openai.completions import CompletionLogprobs

if TYPE_CHECKING:
    from kvarn.answers.moderation.output_moderation import OutputModeration


@dataclass(slots=True)
class ChoiceDelta:
    """The news of one choice: the form that an answer has from the engine's tokens to the client's bytes."""

    index: int
    text: str = ""  # the content alone, without reasoning and tool calls
    token_ids: list[int] = field(default_factory=list)  # all tokens counted, the end token included
    reasoning_tokens: int = 0
    """So many tokens are now known to be reasoning and its tags; perhaps some of the delta before."""
    positions: list[PositionLogprobs] = field(default_factory=list)
    """Log-probabilities of each token that is part of the text; empty where not asked for."""
    prompt_positions: list[PositionLogprobs | None] | None = None
    """Log-probabilities of the prompt's tokens; with the first delta, where asked for."""
    finish_reason: FinishReason | None = None  # set in the last delta of the choice
    stop_reason: int | str | None = None
    """The stop string, or the stop token that the client named, which ended the choice."""
    refusal: str = ""  # why moderation ended the answer, in words for a person
    parts: list[Part | ToolCallDelta] | None = None
    """Text, reasoning and tool calls in the order in which the model wrote them; None where there is only text."""
    cut_call: bool = False  # the last tool call was not finished, at the end: it is no call of the whole answer
    logprobs: list[TokenLogprobs | Raw] | None = None
    """`positions` as a chat's answer has them; None where not asked for."""
    completion_logprobs: CompletionLogprobs | None = None
    """Log-probabilities as a text completion has them, where another server has made them."""
    warnings: list[str] = field(default_factory=list)  # faults of the tool calls, at the end
    executions: list[dict[str, Any]] | None = None
    """Calls of tools that the platform has run, as items of a response."""
    annotations: list[dict[str, Any]] | None = None  # citations in the whole text, with the last delta

    @property
    def tool_calls(self) -> list[ToolCallDelta]:
        return [part for part in self.parts or () if isinstance(part, ToolCallDelta)]

    @property
    def text_parts(self) -> list[Part]:
        if self.parts is None:
            return [self.text]
        return [part for part in self.parts if not isinstance(part, ToolCallDelta)]

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts or () if isinstance(part, Reasoning))

    @property
    def written(self) -> str:
        """Text, reasoning and tool calls as the model wrote them."""
        return "".join(map(_written, self.parts)) if self.parts is not None else self.text

    def write(self, parts: list[Part]) -> None:
        if len(parts) == 1 and isinstance(parts[0], str):  # the usual case
            self.text = parts[0]
            return
        self.text = "".join(part for part in parts if isinstance(part, str))
        if any(isinstance(part, Reasoning) for part in parts):
            self.parts = [*joined(parts)]


def _written(part: Part | ToolCallDelta) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Reasoning):
        return part.text
    return "".join(each for each in (part.function.name, part.function.arguments) if isinstance(each, str))


@dataclass(slots=True)
class Choice:
    """Turns the token deltas of one choice into deltas with text."""

    index: int  # in the answer
    detokenizer: IncrementalDetokenizer
    stop: StopMatcher | None  # its own, fresh; None where the request has no stop strings
    min_tokens: int  # stop strings count from this many tokens on
    named_stop_ids: frozenset[int]
    """Stop tokens that the client asked for, to be told apart from the model's end tokens."""
    splitter: ReasoningSplitter | None = None
    """Its own, fresh; None where the model does not reason. Stop strings count in content only."""
    with_reasoning: bool = True  # the client wants the reasoning; else it is left out
    prompt_only: bool = False
    """The client wants no answer, only what is known of its prompt: the token drawn is dropped."""
    moderation: OutputModeration | None = None
    transform: Callable[[ChoiceDelta], None] | None = None
    """Adds to its deltas what the endpoint needs; may end it by setting the finish reason."""
    ended: bool = False
    num_tokens: int = 0  # up to and including the one that completed a stop string
    undecided_tokens: int = 0  # at the end of what has come: reasoning perhaps

    def add(self, new: TokenDelta) -> ChoiceDelta:
        """The delta that new tokens make; must not be called after a delta with a finish reason."""
        delta = ChoiceDelta(self.index, prompt_positions=new.prompt_logprobs)
        if self.prompt_only:
            delta.finish_reason = "length"
            return delta
        shown = new.token_ids
        if new.finish_reason is EngineFinishReason.STOP:
            shown = shown[:-1]  # the stop token ends the text, it is not part of it
        parts: list[Part] = []
        for position, token_id in enumerate(shown):
            self.num_tokens += 1
            if new.logprobs is not None:
                delta.positions.append(new.logprobs[position])
            piece = self.detokenizer.push_one(token_id)
            if self.splitter is None and self.stop is None:  # the usual case
                parts.append(piece)
                continue
            new_parts = (piece,) if self.splitter is None else self._split(self.splitter, piece, delta)
            if (matched := self._take(new_parts, parts)) is not None:
                delta.token_ids = shown[: position + 1]
                delta.finish_reason, delta.stop_reason = "stop", matched
                break
        else:
            self.num_tokens += len(new.token_ids) - len(shown)
            delta.token_ids = new.token_ids
            if new.finish_reason is not None:
                self._finish(delta, new, parts)
        if len(parts) == 1 and isinstance(parts[0], str):  # the usual case
            delta.text = parts[0]
        else:
            delta.write(parts)
        return delta

    def _split(self, splitter: ReasoningSplitter, piece: str, delta: ChoiceDelta) -> Sequence[Part]:
        """The parts that a token's text completes; counts the token where it is reasoning."""
        before = splitter.phase
        parts = splitter.push(piece)
        if before is ReasoningPhase.INSIDE:
            delta.reasoning_tokens += 1
        elif splitter.phase is ReasoningPhase.INSIDE:
            delta.reasoning_tokens += self.undecided_tokens + 1
            self.undecided_tokens = 0
        else:
            self.undecided_tokens = self.undecided_tokens + 1 if splitter.phase is ReasoningPhase.BEFORE else 0
        return parts

    def _take(self, new: Sequence[Part], parts: list[Part]) -> str | None:
        """Add parts, content as far as it certainly comes before any stop string; returns the one that ends it."""
        for part in new:
            if not isinstance(part, str):
                if self.with_reasoning:
                    parts.append(part)
                continue
            text, matched = part, None
            if self.stop is not None and self.num_tokens >= self.min_tokens:
                text, matched = self.stop.push(part)
            parts.append(text)
            if matched is not None:
                return matched
        return None

    def _finish(self, delta: ChoiceDelta, new: TokenDelta, parts: list[Part]) -> None:
        """End the choice as the engine did, unless the text held back till now completes a stop string."""
        text = self.detokenizer.flush()
        last: list[Part] = [text]
        if self.splitter is not None:
            is_cut = new.finish_reason is EngineFinishReason.LENGTH
            last = self.splitter.push(text) + self.splitter.flush(cut_off=is_cut)
        matched = self._take(last, parts)
        if matched is not None:
            delta.finish_reason, delta.stop_reason = "stop", matched
            return
        if self.stop is not None:
            parts.append(self.stop.flush())
        delta.finish_reason = "length" if new.finish_reason is EngineFinishReason.LENGTH else "stop"
        if delta.finish_reason == "stop" and new.token_ids and new.token_ids[-1] in self.named_stop_ids:
            delta.stop_reason = new.token_ids[-1]
