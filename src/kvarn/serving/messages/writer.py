"""From the deltas of a chat's answer to the blocks of a message and the events of its stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from kvarn.serving.choice import ChoiceDelta
from kvarn.serving.work import TokenUsage
from kvarn.wire.anthropic.answer import (
    AnswerBlock,
    AnswerText,
    AnswerToolUse,
    Delta,
    Event,
    Message,
    StopReason,
    Usage,
)
from kvarn.wire.openai.chat.answer import ToolCallDelta

INVALID = "INVALID_JSON"
"""Key under which an input stands that is no JSON object: Anthropic's advice for sending one back to a model."""


@dataclass(slots=True)
class _Block:
    """A block that is being written; text where it has no name."""

    id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)

    def finished(self) -> AnswerBlock:
        text = "".join(self.texts)
        return AnswerToolUse(id=self.id, name=self.name, input=_input(text)) if self.name else AnswerText(text=text)

    def begun(self) -> AnswerBlock:
        return AnswerToolUse(id=self.id, name=self.name, input={}) if self.name else AnswerText(text="")


class MessageWriter:
    """Writes one message.

    Args:
        message_id: Its id.
        model: What answers.
        usage: Where its tokens are counted.
    """

    def __init__(self, message_id: str, model: str, usage: TokenUsage) -> None:
        self._id = message_id
        self._model = model
        self._tokens = usage
        self._blocks: list[_Block] = []
        self._open = False
        self._stop_reason: StopReason | None = None
        self._stop_sequence: str | None = None
        self._warnings: list[str] = []

    def begin(self) -> list[Event]:
        """The first events. The prompt's tokens must have been counted."""
        return [Event(type="message_start", message=self.message()), Event(type="ping")]

    def take(self, delta: ChoiceDelta) -> list[Event]:
        """Write the next delta; the last one ends the message."""
        events: list[Event] = []
        for each in [delta.text] if delta.parts is None else delta.parts:
            events += self._take_text(each) if isinstance(each, str) else self._take_call(each)
        if delta.finish_reason is not None:
            events += self._end(delta)
        return events

    def message(self) -> Message:
        """The message as far as it is written."""
        return Message(
            id=self._id,
            model=self._model,
            content=[block.finished() for block in self._blocks],
            stop_reason=self._stop_reason,
            stop_sequence=self._stop_sequence,
            usage=self._usage(),
            warnings=self._warnings or UNSET,
        )

    def _take_text(self, text: str) -> list[Event]:
        opening = self._begin_block(_Block()) if not self._open or self._blocks[-1].name else []
        self._blocks[-1].texts.append(text)
        return [
            *opening,
            Event(type="content_block_delta", index=len(self._blocks) - 1, delta=Delta(type="text_delta", text=text)),
        ]

    def _take_call(self, call: ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        if isinstance(call.id, str) and isinstance(call.function.name, str):
            call_id = f"toolu_{call.id.removeprefix('call_')}" if call.id.startswith("call_") else call.id
            events += self._begin_block(_Block(call_id, call.function.name))
        if isinstance(call.function.arguments, str) and call.function.arguments:
            self._blocks[-1].texts.append(call.function.arguments)
            delta = Delta(type="input_json_delta", partial_json=call.function.arguments)
            events.append(self._block_event("delta", delta=delta))
        return events

    def _begin_block(self, block: _Block) -> list[Event]:
        closing = self._end_block()
        self._blocks.append(block)
        self._open = True
        return [*closing, self._block_event("start", content_block=block.begun())]

    def _end_block(self) -> list[Event]:
        was_open, self._open = self._open, False
        return [self._block_event("stop")] if was_open else []

    def _block_event(self, kind: str, **fields: Any) -> Event:
        """An event of the last block."""
        return Event(type=f"content_block_{kind}", index=len(self._blocks) - 1, **fields)

    def _end(self, delta: ChoiceDelta) -> list[Event]:
        matched = delta.stop_reason if isinstance(delta.stop_reason, str) else None
        self._stop_reason, self._stop_sequence = self._reason(delta, matched), matched
        self._warnings = delta.warnings
        closing = self._end_block()
        last = Event(
            type="message_delta",
            delta=Delta(stop_reason=self._stop_reason, stop_sequence=matched),
            usage=self._usage(),
            warnings=self._warnings or UNSET,
        )
        return [*closing, last, Event(type="message_stop")]

    def _reason(self, delta: ChoiceDelta, matched: str | None) -> StopReason:
        if delta.finish_reason == "length":
            return "max_tokens"
        if delta.finish_reason == "content_filter":
            return "refusal"
        if matched is not None:
            return "stop_sequence"
        return "tool_use" if any(block.name for block in self._blocks) else "end_turn"

    def _usage(self) -> Usage:
        usage = self._tokens
        return Usage(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_input_tokens=usage.cached_tokens,
        )


def _input(arguments: str) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {INVALID: arguments}
