"""From the parts of another server's answer to the deltas of its choices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kvarn.answers.choice import ChoiceDelta
from kvarn.external.answer import ChoicePart, LogprobsPart, MessagePart, ToolCallPart
from kvarn.external.errors import ExternalFailedError
from kvarn.store.ids import new_id
from kvarn.text.reasoning.splitter import Part, Reasoning
from kvarn.wire.openai.chat.answer import FinishReason, FunctionCallDelta, ToolCallDelta
from kvarn.wire.openai.completions import CompletionLogprobs

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_BROKEN_OFF = frozenset({"abort", "error", "insufficient_system_resource"})


class ChoiceReader:
    """Reads the parts of one choice. `legacy`: the client speaks of functions, not of tools."""

    def __init__(self, index: int, *, legacy: bool = False, with_reasoning: bool = True) -> None:
        self.index = index
        self.written = ""
        """By the latest part: text, reasoning and calls, also what is left out."""
        self._legacy = legacy
        self._with_reasoning = with_reasoning
        self._calls: list[int | None] = []
        """Numbers that the server gives the calls, in the order in which they began."""

    def read(self, part: ChoicePart) -> ChoiceDelta:
        """A part as a delta. Raises `ExternalFailedError` where it makes no sense, or says that the answer was broken
        off."""
        message = part.delta or part.message or MessagePart()
        reasoning = message.reasoning or message.reasoning_content or ""
        text = part.text or _text_of(message.content)
        calls = [self._call(call) for call in message.tool_calls or ()]
        delta = ChoiceDelta(self.index, text, refusal=message.refusal or "")
        if reasoning or calls:
            shown: list[Part] = [Reasoning(reasoning)] if reasoning and self._with_reasoning else []
            delta.parts = [*shown, *([text] if text else ()), *calls]
        self.written = "".join((reasoning, text, *map(_text_of_call, calls)))
        if part.logprobs is not None:
            _add_logprobs(delta, part.logprobs, only_reasoning=bool(reasoning) and not text)
        if part.finish_reason is not None:
            self._finish(delta, part)
        return delta

    def _finish(self, delta: ChoiceDelta, part: ChoicePart) -> None:
        if part.finish_reason in _BROKEN_OFF:
            raise ExternalFailedError(f"it broke the answer off ({part.finish_reason})")
        delta.finish_reason = _FINISH.get(part.finish_reason or "", "stop")
        if delta.finish_reason == "tool_calls" and self._legacy:
            delta.finish_reason = "function_call"
        delta.stop_reason = part.stop_reason

    def _call(self, call: ToolCallPart) -> ToolCallDelta:
        """A piece of a call; its first has an id and a name."""
        name, arguments = call.function.name, call.function.arguments
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        begins = bool(name) and (call.index is None or call.index not in self._calls)
        if begins:
            self._calls.append(call.index)
            function = FunctionCallDelta(name=name or "", arguments=arguments or "")
            return ToolCallDelta(
                index=len(self._calls) - 1, id=call.id or new_id("call_"), type="function", function=function
            )
        if call.index not in self._calls and not self._calls:
            raise ExternalFailedError("it sent a piece of a tool call that has not begun")
        known = call.index is not None and call.index in self._calls
        index = self._calls.index(call.index) if known else len(self._calls) - 1
        return ToolCallDelta(index=index, function=FunctionCallDelta(arguments=arguments or ""))


def _text_of(content: str | Sequence[Any] | None) -> str:
    """The text of a message's content: a string, or parts of which those of text count."""
    if isinstance(content, str) or content is None:
        return content or ""
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _text_of_call(call: ToolCallDelta) -> str:
    fields = (call.function.name, call.function.arguments)
    return "".join(each for each in fields if isinstance(each, str))


def _add_logprobs(delta: ChoiceDelta, logprobs: LogprobsPart, *, only_reasoning: bool) -> None:
    if logprobs.content is not None:
        delta.logprobs = list(logprobs.content)
        if only_reasoning:  # they are not of the content's tokens
            delta.reasoning_tokens = len(delta.logprobs)
    elif logprobs.tokens is not None:
        count = len(logprobs.tokens)
        delta.completion_logprobs = CompletionLogprobs(
            tokens=logprobs.tokens,
            token_logprobs=_fitting(logprobs.token_logprobs, count),
            top_logprobs=None if logprobs.top_logprobs is None else [each or {} for each in logprobs.top_logprobs],
            text_offset=_fitting(logprobs.text_offset, count),
        )


def _fitting(values: list[Any] | None, count: int) -> list[Any]:
    if values is None or len(values) != count:
        raise ExternalFailedError("its log-probabilities do not fit together")
    return values
