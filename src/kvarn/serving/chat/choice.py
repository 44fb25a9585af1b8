"""One choice of a chat answer: text, tool calls, log-probabilities, why it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import UNSET, Raw

from kvarn.serving.chat.tool_check import complaint
from kvarn.serving.choice import Piece
from kvarn.serving.held_bytes import HeldBytes
from kvarn.serving.logprobs import LogprobsEncoder, encoded_bytes
from kvarn.text.tool_calls.base import ToolCallParser
from kvarn.text.tool_calls.events import TextDelta, ToolCallStart, ToolEvent
from kvarn.wire.openai.chat.answer import (
    AnswerMessage,
    ChatChoice,
    ChoiceLogprobs,
    FinishReason,
    FunctionCall,
    FunctionCallDelta,
    TokenLogprobs,
    ToolCall,
    ToolCallDelta,
)
from kvarn.wire.openai.chat.tools import ToolUse


@dataclass(slots=True)
class ChatParts:
    """A piece in chat's terms."""

    content: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    ordered: list[str | ToolCallDelta] = field(default_factory=list)
    """Content and tool calls in the order in which the model wrote them, for those to whom it matters."""
    logprobs: list[TokenLogprobs | Raw] | None = None
    token_ids: list[int] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    warnings: list[str] = field(default_factory=list)
    """What is wrong with the calls, at the end."""
    refusal: str = ""
    """Why moderation ended the answer."""

    @property
    def only_text(self) -> bool:
        """Whether there is nothing but content (or nothing at all) to send."""
        return self.finish_reason is None and not self.tool_calls and not self.logprobs and self.token_ids is None


@dataclass(frozen=True, slots=True)
class CallReading:
    """How tool calls are found in a choice."""

    use: ToolUse
    parser: ToolCallParser
    """Its own, fresh."""
    end: Callable[[], None]
    """Ends the choice: called when all the calls that were asked for are complete."""


class ChatReader:
    """Reads the pieces of one choice.

    Args:
        logprobs: Encodes log-probabilities.
        calls: How to find tool calls in the text; None where the request has no tools.
        top_logprobs: Alternatives at each position; None where log-probabilities were not asked for.
        with_token_ids: Whether the client wants the ids too.
        opening: Text the answer begins with.
    """

    def __init__(
        self,
        logprobs: LogprobsEncoder,
        calls: CallReading | None = None,
        top_logprobs: int | None = None,
        with_token_ids: bool = False,
        opening: str = "",
    ) -> None:
        self.opening = opening
        self._logprobs = logprobs
        self._calls = calls
        self._top_logprobs = top_logprobs
        self._with_token_ids = with_token_ids
        self._called: list[tuple[str, list[str]]] = []
        """Name and arguments of each call so far."""

    @property
    def legacy(self) -> bool:
        """Whether the client speaks of functions, not of tools."""
        return self._calls is not None and self._calls.use.legacy

    def read(self, piece: Piece) -> ChatParts:
        """The next piece in chat's terms."""
        parts = ChatParts(finish_reason=piece.finish_reason, stop_reason=piece.stop_reason, refusal=piece.notice)
        if self._calls is None:
            parts.content = piece.text
            parts.ordered = [piece.text] if piece.text else []
        else:
            self._read_calls(self._calls, piece, parts)
        if self._top_logprobs is not None:
            parts.logprobs = self._logprobs.chat(piece.logprobs, self._top_logprobs)
        if self._with_token_ids:
            parts.token_ids = piece.token_ids
        return parts

    def _read_calls(self, calls: CallReading, piece: Piece, parts: ChatParts) -> None:
        self._take(calls.parser.push(piece.text), parts)
        if piece.finish_reason is not None:
            self._take(calls.parser.flush(), parts)
        elif calls.parser.satisfied:
            parts.finish_reason = "stop"
            calls.end()
        if parts.finish_reason is None:
            return
        if parts.finish_reason == "stop" and self._called and calls.use.named is None:
            parts.finish_reason = "function_call" if calls.use.legacy else "tool_calls"
        parts.warnings = self._complaints(calls.use)

    def _take(self, events: list[ToolEvent], parts: ChatParts) -> None:
        for event in events:
            if isinstance(event, TextDelta):
                parts.content += event.text
                parts.ordered.append(event.text)
                continue
            if isinstance(event, ToolCallStart):
                self._called.append((event.name, []))
                function = FunctionCallDelta(name=event.name, arguments="")
                call = ToolCallDelta(index=event.index, id=event.id, type="function", function=function)
            else:
                self._called[event.index][1].append(event.delta)
                call = ToolCallDelta(index=event.index, function=FunctionCallDelta(arguments=event.delta))
            parts.tool_calls.append(call)
            parts.ordered.append(call)

    def _complaints(self, use: ToolUse) -> list[str]:
        if use.forced and not self._called:
            return ["The model was to call a function and did not."]
        required = {function.name: function.required for function in use.functions}
        found = [
            complaint(index, name, "".join(arguments), required.get(name, ()))
            for index, (name, arguments) in enumerate(self._called)
        ]
        return [each for each in found if each is not None]


class ChatCollector:
    """Gathers the parts of one choice into a whole message.

    Args:
        index: The choice's number.
        reader: Reads its pieces.
        held: Counts the memory that its log-probabilities take; text and token ids are small beside them.
    """

    def __init__(self, index: int, reader: ChatReader, held: HeldBytes) -> None:
        self.warnings: list[str] = []
        self._index = index
        self._reader = reader
        self._held = held
        self._text = [reader.opening]
        self._logprobs: list[TokenLogprobs | Raw] | None = None
        self._token_ids: list[int] | None = None
        self._calls: list[tuple[str, str, list[str]]] = []
        self._finish_reason: FinishReason = "stop"
        self._stop_reason: int | str | None = None
        self._refusal = ""

    def add(self, piece: Piece) -> None:
        """Read the choice's next piece and take what it comes to. Raises as `take` does."""
        self.take(self._reader.read(piece))

    def take(self, parts: ChatParts) -> None:
        """Take what the reader has read.

        Raises:
            BodyRefusedError: There is no memory left for it.
        """
        self._text.append(parts.content)
        if parts.logprobs is not None:
            self._held.take(encoded_bytes(parts.logprobs))
            self._logprobs = self._logprobs or []
            self._logprobs += parts.logprobs
        if parts.token_ids is not None:
            self._token_ids = self._token_ids or []
            self._token_ids += parts.token_ids
        for call in parts.tool_calls:
            if isinstance(call.id, str) and isinstance(call.function.name, str):
                self._calls.append((call.id, call.function.name, []))
            if isinstance(call.function.arguments, str):
                self._calls[call.index][2].append(call.function.arguments)
        if parts.finish_reason is not None:
            self._finish_reason, self._stop_reason = parts.finish_reason, parts.stop_reason
            self._refusal = parts.refusal
        self.warnings += parts.warnings

    def choice(self) -> ChatChoice:
        """The finished choice."""
        text = "".join(self._text)
        calls = [
            ToolCall(id=call_id, function=FunctionCall(name=name, arguments="".join(arguments)))
            for call_id, name, arguments in self._calls
        ]
        legacy = self._reader.legacy
        return ChatChoice(
            index=self._index,
            message=AnswerMessage(
                content=None if calls and not text else text,
                refusal=self._refusal or None,
                tool_calls=calls if calls and not legacy else UNSET,
                function_call=calls[0].function if calls and legacy else UNSET,
            ),
            finish_reason=self._finish_reason,
            logprobs=None if self._logprobs is None else ChoiceLogprobs(content=self._logprobs),
            stop_reason=self._stop_reason,
            token_ids=UNSET if self._token_ids is None else self._token_ids,
        )
