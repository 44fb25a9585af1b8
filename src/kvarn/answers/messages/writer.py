"""From the deltas of a chat's answer to the blocks of a message and the events of its stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from kvarn.answers.chat.tool_calls import arguments_object
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.messages.hosted import hosted_blocks
from kvarn.text.reasoning.splitter import Part, Reasoning
from kvarn.wire.anthropic.answer import (
    AnswerBlock,
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    AppliedEdit,
    Delta,
    Event,
    Message,
    StopReason,
    Usage,
)
from kvarn.wire.anthropic.hosted import AnswerWebSearchResult, HostedAnswerBlock
from kvarn.wire.openai.chat.answer import ToolCallDelta
from kvarn.wire.openai.usage import Usage as TokensUsed


@dataclass(slots=True)
class _Block:
    """A block that is being written: a call where it has a name, else text or thinking."""

    id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)
    thinks: bool = False
    hosted: HostedAnswerBlock | None = None
    """A call of a tool that the server ran, or its result."""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def finished(self) -> AnswerBlock:
        if self.hosted is not None:
            return self.hosted
        if self.name:
            return AnswerToolUse(id=self.id, name=self.name, input=arguments_object(self.text))
        return (
            AnswerThinking(thinking=self.text, signature=self.signature) if self.thinks else AnswerText(text=self.text)
        )

    def begun(self) -> AnswerBlock:
        if self.hosted is not None:
            return msgspec.structs.replace(self.hosted, input={}) if hasattr(self.hosted, "input") else self.hosted
        if self.name:
            return AnswerToolUse(id=self.id, name=self.name, input={})
        return AnswerThinking(thinking="", signature="") if self.thinks else AnswerText(text="")

    @property
    def signature(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(slots=True)
class MessageWriter:
    id: str
    model: str
    used: Callable[[], TokensUsed]
    """Tokens so far."""
    applied_edits: list[AppliedEdit] | None = None
    """Edits that left something out of the prompt; None: none was asked for."""
    blocks: list[_Block] = field(default_factory=list)
    open: bool = False  # whether the last block goes on
    cut_call: bool = False  # whether the last call was not finished: the whole message is without it
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    warnings: list[str] = field(default_factory=list)

    def begin(self) -> list[Event]:
        """The first events. The prompt's tokens must have been counted."""
        return [Event(type="message_start", message=self.message()), Event(type="ping")]

    def take(self, delta: ChoiceDelta) -> list[Event]:
        events: list[Event] = []
        for each in [delta.text] if delta.parts is None else delta.parts:
            if isinstance(each, ToolCallDelta):
                events += self._take_call(each)
            elif each:
                events += self._take_text(each)
        for item in delta.executions or ():
            events += self._take_execution(item)
        if delta.finish_reason is not None:
            events += self._end(delta)
        return events

    def message(self) -> Message:
        blocks = self.blocks[:-1] if self.cut_call else self.blocks
        return Message(
            id=self.id,
            model=self.model,
            content=[block.finished() for block in blocks],
            stop_reason=self.stop_reason,
            stop_sequence=self.stop_sequence,
            usage=self._usage(),
            context_management=self._managed,
            warnings=self.warnings or UNSET,
        )

    @property
    def _managed(self) -> dict[str, list[AppliedEdit]] | UnsetType:
        return UNSET if self.applied_edits is None else {"applied_edits": self.applied_edits}

    def _take_text(self, part: Part) -> list[Event]:
        thinks = isinstance(part, Reasoning)
        last = self.blocks[-1] if self.open else None
        goes_on = last is not None and not last.name and last.hosted is None and last.thinks is thinks
        opening = [] if goes_on else self._begin_block(_Block(thinks=thinks))
        text = part.text if isinstance(part, Reasoning) else part
        self.blocks[-1].texts.append(text)
        delta = Delta(type="thinking_delta", thinking=text) if thinks else Delta(type="text_delta", text=text)
        return [*opening, self._block_event("delta", delta=delta)]

    def _take_call(self, call: ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        if isinstance(call.id, str) and isinstance(call.function.name, str):
            call_id = f"toolu_{call.id.removeprefix('call_')}" if call.id.startswith("call_") else call.id
            events += self._begin_block(_Block(call_id, call.function.name))
        if isinstance(call.function.arguments, str) and call.function.arguments:
            self.blocks[-1].texts.append(call.function.arguments)
            delta = Delta(type="input_json_delta", partial_json=call.function.arguments)
            events.append(self._block_event("delta", delta=delta))
        return events

    def _take_execution(self, item: dict[str, Any]) -> list[Event]:
        """A call that the server ran, and its result: blocks that come whole."""
        events: list[Event] = []
        for block in hosted_blocks(item):
            events += self._begin_block(_Block(hosted=block))
            if (given := getattr(block, "input", None)) is not None:
                text = msgspec.json.encode(given).decode()
                delta = Delta(type="input_json_delta", partial_json=text)
                events.append(self._block_event("delta", delta=delta))
        return [*events, *self._end_block()]

    def _begin_block(self, block: _Block) -> list[Event]:
        closing = self._end_block()
        self.blocks.append(block)
        self.open = True
        return [*closing, self._block_event("start", content_block=block.begun())]

    def _end_block(self) -> list[Event]:
        was_open, self.open = self.open, False
        if not was_open:
            return []
        signed = []
        if self.blocks[-1].thinks:
            signature = Delta(type="signature_delta", signature=self.blocks[-1].signature)
            signed = [self._block_event("delta", delta=signature)]
        return [*signed, self._block_event("stop")]

    def _block_event(self, kind: str, **fields: Any) -> Event:
        return Event(type=f"content_block_{kind}", index=len(self.blocks) - 1, **fields)

    def _end(self, delta: ChoiceDelta) -> list[Event]:
        matched = delta.stop_reason if isinstance(delta.stop_reason, str) else None
        self.cut_call = delta.cut_call
        self.stop_reason, self.stop_sequence = self._reason(delta, matched), matched
        self.warnings = delta.warnings
        closing = self._end_block()
        last = Event(
            type="message_delta",
            delta=Delta(stop_reason=self.stop_reason, stop_sequence=matched),
            usage=self._usage(),
            context_management=self._managed,
            warnings=self.warnings or UNSET,
        )
        return [*closing, last, Event(type="message_stop")]

    def _reason(self, delta: ChoiceDelta, matched: str | None) -> StopReason:
        if delta.finish_reason == "length":
            return "max_tokens"
        if delta.finish_reason == "content_filter":
            return "refusal"
        if matched is not None:
            return "stop_sequence"
        return "tool_use" if any(block.name for block in self.blocks) and not self.cut_call else "end_turn"

    def _usage(self) -> Usage:
        used = self.used()
        cached = used.prompt_tokens_details.cached_tokens
        searches = sum(isinstance(block.hosted, AnswerWebSearchResult) for block in self.blocks)
        return Usage(
            input_tokens=used.prompt_tokens - cached,
            output_tokens=used.completion_tokens,
            cache_read_input_tokens=cached,
            server_tool_use={"web_search_requests": searches, "web_fetch_requests": 0} if searches else UNSET,
        )
