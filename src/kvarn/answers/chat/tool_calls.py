"""The tool calls in the text of a chat's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvarn.answers.choice import ChoiceDelta
from kvarn.text.reasoning.splitter import Part
from kvarn.text.tool_calls.base import ToolCallParser
from kvarn.text.tool_calls.events import TextDelta, ToolCallStart, ToolEvent
from kvarn.wire.openai.chat.answer import FunctionCallDelta, ToolCallDelta
from kvarn.wire.openai.chat.request import ToolUse

INVALID = "INVALID_JSON"
"""Key under which arguments stand that are no JSON object: Anthropic's advice for sending them back to a model."""


@dataclass(slots=True)
class ToolCallReader:
    """Finds the tool calls in the text of one choice. One that is cut off by the answer's end is no call: where its
    beginning has been given out, the last delta says so (`cut_call`)."""

    use: ToolUse  # which tools the request has, and how they may be called
    parser: ToolCallParser
    calls: list[tuple[str, list[str]]] = field(default_factory=list)  # name and arguments of each call so far

    def read(self, delta: ChoiceDelta) -> None:
        """Set the parts, text and finish reason of a delta. The choice ends when all calls that were asked for are
        complete."""
        parts: list[Part | ToolCallDelta] = []
        for part in delta.text_parts:
            parts += self._parts(self.parser.push(part)) if isinstance(part, str) else [part]
        delta.parts = parts
        if delta.finish_reason is not None:
            cut_off = delta.finish_reason != "stop" or delta.stop_reason is not None
            delta.parts += self._parts(self.parser.flush(cut_off=cut_off))
            delta.cut_call = self.parser.is_open
        elif self.parser.satisfied:
            delta.finish_reason = "stop"
        delta.text = "".join(part for part in delta.parts if isinstance(part, str))
        if delta.finish_reason is None:
            return
        if delta.finish_reason == "stop" and self.calls and not delta.cut_call and self.use.named is None:
            delta.finish_reason = "function_call" if self.use.legacy else "tool_calls"
        delta.warnings = self._warnings()

    def _parts(self, events: list[ToolEvent]) -> list[Part | ToolCallDelta]:
        parts: list[Part | ToolCallDelta] = []
        for event in events:
            if isinstance(event, TextDelta):
                parts.append(event.text)
            elif isinstance(event, ToolCallStart):
                self.calls.append((event.name, []))
                function = FunctionCallDelta(name=event.name, arguments="")
                parts.append(ToolCallDelta(index=event.index, id=event.id, type="function", function=function))
            else:
                self.calls[event.index][1].append(event.delta)
                parts.append(ToolCallDelta(index=event.index, function=FunctionCallDelta(arguments=event.delta)))
        return parts

    def _warnings(self) -> list[str]:
        if self.use.forced and not self.calls:
            return ["The model was to call a function and did not."]
        required = {function.name: function.required for function in self.use.functions}
        found = [
            _check_call(index, name, "".join(arguments), required.get(name, ()))
            for index, (name, arguments) in enumerate(self.calls)
        ]
        if self.parser.is_open:
            found[-1] = f"Tool call {len(found) - 1} ({self.calls[-1][0]}) was cut off: it is no call."
        return [each for each in found if each is not None]


def arguments_object(arguments: str) -> dict[str, Any]:
    """The arguments of a call (JSON text) as an object; under `INVALID_JSON` where they are none."""
    try:
        parsed = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {INVALID: arguments}


def _check_call(index: int, name: str, arguments: str, required: Sequence[str]) -> str | None:
    """The fault of a finished call's arguments (JSON text); None where there is none. Nothing is changed: the
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
