"""One choice of a chat answer: tool calls and log-probabilities read from its deltas, the message made of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw

from kvarn.serving.choice import ChoiceDelta
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
from kvarn.wire.openai.chat.request import ToolUse


class ToolCallReader:
    """Finds the tool calls in the text of one choice.

    Args:
        use: Which tools the request has, and how they may be called.
        parser: Its own, fresh.
    """

    def __init__(self, use: ToolUse, parser: ToolCallParser) -> None:
        self._use = use
        self._parser = parser
        self._calls: list[tuple[str, list[str]]] = []
        """Name and arguments of each call so far."""

    def read(self, delta: ChoiceDelta) -> None:
        """Set the parts, text and finish reason of a delta. The choice ends when all calls that were asked for are
        complete."""
        delta.parts = self._parts(self._parser.push(delta.text))
        if delta.finish_reason is not None:
            delta.parts += self._parts(self._parser.flush())
        elif self._parser.satisfied:
            delta.finish_reason = "stop"
        delta.text = "".join(part for part in delta.parts if isinstance(part, str))
        if delta.finish_reason is None:
            return
        if delta.finish_reason == "stop" and self._calls and self._use.named is None:
            delta.finish_reason = "function_call" if self._use.legacy else "tool_calls"
        delta.warnings = self._warnings()

    def _parts(self, events: list[ToolEvent]) -> list[str | ToolCallDelta]:
        parts: list[str | ToolCallDelta] = []
        for event in events:
            if isinstance(event, TextDelta):
                parts.append(event.text)
            elif isinstance(event, ToolCallStart):
                self._calls.append((event.name, []))
                function = FunctionCallDelta(name=event.name, arguments="")
                parts.append(ToolCallDelta(index=event.index, id=event.id, type="function", function=function))
            else:
                self._calls[event.index][1].append(event.delta)
                parts.append(ToolCallDelta(index=event.index, function=FunctionCallDelta(arguments=event.delta)))
        return parts

    def _warnings(self) -> list[str]:
        if self._use.forced and not self._calls:
            return ["The model was to call a function and did not."]
        required = {function.name: function.required for function in self._use.functions}
        found = [
            _check_call(index, name, "".join(arguments), required.get(name, ()))
            for index, (name, arguments) in enumerate(self._calls)
        ]
        return [each for each in found if each is not None]


class ChatTransform:
    """Adds tool calls and log-probabilities to the deltas of one choice; see `Transform`.

    Args:
        tools: Finds tool calls; None where the request has no tools.
        logprobs: Encodes log-probabilities.
        top_logprobs: Alternatives at each position; None where log-probabilities were not asked for.
    """

    def __init__(self, tools: ToolCallReader | None, logprobs: LogprobsEncoder, top_logprobs: int | None) -> None:
        self._tools = tools
        self._logprobs = logprobs
        self._top_logprobs = top_logprobs

    def __call__(self, delta: ChoiceDelta) -> None:
        """Add to one delta."""
        if self._tools is not None:
            self._tools.read(delta)
        if self._top_logprobs is not None:
            delta.logprobs = self._logprobs.chat(delta.positions, self._top_logprobs)


class ChatCollector:
    """Gathers the deltas of one choice into a whole message.

    Args:
        index: The choice's number.
        held: Counts the memory that its log-probabilities take; text and token ids are small beside them.
        opening: Text the answer begins with.
        legacy: The client speaks of functions, not of tools.
        with_token_ids: The client wants the token ids too.
    """

    def __init__(self, index: int, held: HeldBytes, opening: str, *, legacy: bool, with_token_ids: bool) -> None:
        self.warnings: list[str] = []
        self._index = index
        self._held = held
        self._legacy = legacy
        self._text = [opening]
        self._logprobs: list[TokenLogprobs | Raw] | None = None
        self._token_ids: list[int] | None = [] if with_token_ids else None
        self._calls: list[tuple[str, str, list[str]]] = []
        self._finish_reason: FinishReason = "stop"
        self._stop_reason: int | str | None = None
        self._refusal = ""

    def add(self, delta: ChoiceDelta) -> None:
        """Take the choice's next delta.

        Raises:
            BodyRefusedError: There is no memory left for it.
        """
        self._text.append(delta.text)
        if delta.logprobs is not None:
            self._held.take(encoded_bytes(delta.logprobs))
            self._logprobs = self._logprobs or []
            self._logprobs += delta.logprobs
        if self._token_ids is not None:
            self._token_ids += delta.token_ids
        for call in delta.tool_calls:
            if isinstance(call.id, str) and isinstance(call.function.name, str):
                self._calls.append((call.id, call.function.name, []))
            if isinstance(call.function.arguments, str):
                self._calls[call.index][2].append(call.function.arguments)
        if delta.finish_reason is not None:
            self._finish_reason, self._stop_reason = delta.finish_reason, delta.stop_reason
            self._refusal = delta.refusal
        self.warnings += delta.warnings

    def choice(self) -> ChatChoice:
        """The finished choice."""
        text = "".join(self._text)
        calls = [
            ToolCall(id=call_id, function=FunctionCall(name=name, arguments="".join(arguments)))
            for call_id, name, arguments in self._calls
        ]
        return ChatChoice(
            index=self._index,
            message=AnswerMessage(
                content=None if calls and not text else text,
                refusal=self._refusal or None,
                tool_calls=calls if calls and not self._legacy else UNSET,
                function_call=calls[0].function if calls and self._legacy else UNSET,
            ),
            finish_reason=self._finish_reason,
            logprobs=None if self._logprobs is None else ChoiceLogprobs(content=self._logprobs),
            stop_reason=self._stop_reason,
            token_ids=UNSET if self._token_ids is None else self._token_ids,
        )


def _check_call(index: int, name: str, arguments: str, required: Sequence[str]) -> str | None:
    """What is wrong with the arguments (JSON text) of a finished call; None where nothing is. Nothing is changed: the
    client is warned. `required` are the properties that the tool's schema says they must have."""
    where = f"Tool call {index} ({name})"
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return f"{where}: its arguments are not valid JSON."
    if not isinstance(parsed, dict):
        return f"{where}: its arguments are not a JSON object."
    missing = [each for each in required if each not in parsed]
    return f"{where}: its arguments lack {', '.join(map(repr, missing))}." if missing else None
