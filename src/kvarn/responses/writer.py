"""From the deltas of a chat's answer to a response and the events of its stream.

A writer is a pure machine: the same parts give the same events with the same numbers. So a stream can be sent again
from what is stored: the finished response, and where its deltas were cut (`response_replay`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from kvarn.serving.choice import ChoiceDelta
from kvarn.wire.openai.chat.answer import FinishReason, TokenLogprobs, ToolCallDelta
from kvarn.wire.openai.responses.answer import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    IncompleteDetails,
    ItemEvent,
    PartEvent,
    RefusalDeltaEvent,
    RefusalDoneEvent,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseStatus,
    ResponseUsage,
    StreamEvent,
    TextDeltaEvent,
    TextDoneEvent,
)
from kvarn.wire.openai.responses.items import StoredItem, output_text

Cuts = list[list[list[int]]]
"""For each item its deltas, each as [characters, tokens with log-probabilities]."""


@dataclass(slots=True)
class _Message:
    """The message that is being written."""

    id: str
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs | Raw] = field(default_factory=list)

    def item(self, status: str) -> StoredItem:
        content = [] if status == "in_progress" else [self.part()]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def part(self) -> dict[str, Any]:
        return output_text("".join(self.texts), self.logprobs)


@dataclass(slots=True)
class _Call:
    """The call that is being written."""

    id: str
    call_id: str
    name: str
    texts: list[str] = field(default_factory=list)

    def item(self, status: str) -> StoredItem:
        arguments = "".join(self.texts)
        names = {"call_id": self.call_id, "name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function_call", "status": status, **names}


class ResponseWriter:
    """Writes one response.

    Args:
        response: What was request, nothing written yet.
        first_item: Number of the first item of its output among its items; those of the input come before.
    """

    def __init__(self, response: Response, first_item: int) -> None:
        self.response = response
        self.cuts: Cuts = []
        self.begun = False
        """Whether the model has begun."""
        self._first_item = first_item
        self._number = 0
        self._open: _Message | _Call | None = None
        self._logprobs: list[TokenLogprobs | Raw] = []
        """Of tokens whose text has not come yet."""

    @property
    def started(self) -> bool:
        """Whether any event was given."""
        return self._number > 0

    def next_number(self) -> int:
        """Takes the number of the next event."""
        self._number += 1
        return self._number - 1

    def queue(self) -> list[StreamEvent]:
        """It waits for its turn."""
        self.response = replace(self.response, status="queued")
        return [self._state("response.created"), self._state("response.queued")]

    def begin(self) -> list[StreamEvent]:
        """The model has begun."""
        self.begun = True
        opening = [] if self.started else [self._state("response.created")]
        self.response = replace(self.response, status="in_progress")
        return [*opening, self._state("response.in_progress")]

    def take(self, delta: ChoiceDelta) -> list[StreamEvent]:
        """Write the next delta of the chat."""
        events: list[StreamEvent] = []
        self._logprobs += delta.logprobs or []
        if delta.text:
            events += self._text(delta.text)
        for call in delta.tool_calls:
            events += self._call(call)
        if delta.refusal:
            events += self.refuse(delta.refusal)
        if delta.warnings:
            self.response = replace(self.response, warnings=[*(self.response.warnings or ()), *delta.warnings])
        return events

    def close(self, finish_reason: FinishReason) -> list[StreamEvent]:
        """Nothing more will be written; `finish` is called next. An answer without words is an empty message."""
        opening = [] if self.response.output or self._open else self.open_message()
        return opening + self.close_item("completed" if finish_reason in ("stop", "tool_calls") else "incomplete")

    def finish(self, finish_reason: FinishReason, usage: ResponseUsage | UnsetType, now: int) -> None:
        """It has ended by itself."""
        reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
        if finish_reason in reasons:
            details = msgspec.convert({"reason": reasons[finish_reason]}, IncompleteDetails)
            self.response = replace(self.response, status="incomplete", incomplete_details=details, usage=usage)
        else:
            self.response = replace(self.response, status="completed", completed_at=now, usage=usage)

    def break_off(
        self, status: ResponseStatus, usage: ResponseUsage | UnsetType = UNSET, error: ResponseError | None = None
    ) -> list[StreamEvent]:
        """It ends, cancelled or failed: what has been written stays."""
        opening = [] if self.begun else self.begin()
        closing = self.close_item("incomplete")
        self.response = replace(self.response, status=status, error=error, usage=usage)
        return opening + closing

    def last(self) -> StreamEvent:
        """The event that ends the stream."""
        return end_event(self.response, self.next_number())

    def _state(self, kind: str) -> ResponseEvent:
        return ResponseEvent(type=kind, response=self.response, sequence_number=self.next_number())

    def _text(self, text: str) -> list[StreamEvent]:
        events: list[StreamEvent] = [] if isinstance(self._open, _Message) else self.open_message()
        message = self._open
        assert isinstance(message, _Message)
        message.texts.append(text)
        message.logprobs += self._logprobs
        self.cuts[-1].append([len(text), len(self._logprobs)])
        delta = TextDeltaEvent(
            item_id=message.id,
            output_index=self._index,
            content_index=0,
            delta=text,
            sequence_number=self.next_number(),
            logprobs=self._logprobs,
        )
        self._logprobs = []
        return [*events, delta]

    def _call(self, delta: ToolCallDelta) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if isinstance(delta.id, str):
            name = delta.function.name
            events += self.close_item("completed")
            self._logprobs = []  # those of the call itself belong to no text
            opened = _Call(self._new_id("fc_"), delta.id, name if isinstance(name, str) else "")
            events += self._open_item(opened)
        call, text = self._open, delta.function.arguments
        if isinstance(text, str) and text and isinstance(call, _Call):
            call.texts.append(text)
            self.cuts[-1].append([len(text), 0])
            number = self.next_number()
            events.append(
                ArgumentsDeltaEvent(item_id=call.id, output_index=self._index, delta=text, sequence_number=number)
            )
        return events

    @property
    def _index(self) -> int:
        """Of the open item in the output."""
        return len(self.response.output)

    def _new_id(self, prefix: str) -> str:
        return item_id(prefix, self.response.id, self._first_item + self._index)

    def open_message(self) -> list[StreamEvent]:
        """Begin a message."""
        events = self.close_item("completed")
        message = _Message(self._new_id("msg_"))
        return events + self._open_item(message) + [self._part("response.content_part.added", message)]

    def refuse(self, text: str) -> list[StreamEvent]:
        """The answer ends with a refusal: a message of its own, since what came before it was no part of it."""
        events = self.close_item("incomplete")
        self.cuts.append([])
        name, part = self._new_id("msg_"), {"type": "refusal", "refusal": text}
        item: StoredItem = {"id": name, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        place: dict[str, Any] = {"item_id": name, "output_index": self._index, "content_index": 0}

        def part_event(kind: str, part: dict[str, Any]) -> PartEvent:
            return PartEvent(type=kind, part=part, sequence_number=self.next_number(), **place)

        events += [
            self._item("response.output_item.added", item),
            part_event("response.content_part.added", {**part, "refusal": ""}),
            RefusalDeltaEvent(delta=text, sequence_number=self.next_number(), **place),
            RefusalDoneEvent(refusal=text, sequence_number=self.next_number(), **place),
            part_event("response.content_part.done", part),
        ]
        item = {**item, "status": "completed", "content": [part]}
        events.append(self._item("response.output_item.done", item))
        self.response = replace(self.response, output=[*self.response.output, item])
        return events

    def _open_item(self, opened: _Message | _Call) -> list[StreamEvent]:
        self._open = opened
        self.cuts.append([])
        return [self._item("response.output_item.added", opened.item("in_progress"))]

    def close_item(self, status: str) -> list[StreamEvent]:
        """End the item that is being written, if there is one."""
        closed = self._open
        if closed is None:
            return []
        events: list[StreamEvent] = []
        if isinstance(closed, _Message):
            number = self.next_number()
            done = TextDoneEvent(
                item_id=closed.id,
                output_index=self._index,
                content_index=0,
                text="".join(closed.texts),
                sequence_number=number,
                logprobs=closed.logprobs,
            )
            events += [done, self._part("response.content_part.done", closed)]
        else:
            number = self.next_number()
            arguments = "".join(closed.texts)
            events.append(
                ArgumentsDoneEvent(
                    item_id=closed.id,
                    name=closed.name,
                    output_index=self._index,
                    arguments=arguments,
                    sequence_number=number,
                )
            )
        item = closed.item(status)
        events.append(self._item("response.output_item.done", item))
        self.response = replace(self.response, output=[*self.response.output, item])
        self._open = None
        return events

    def _item(self, kind: str, item: StoredItem) -> ItemEvent:
        return ItemEvent(type=kind, output_index=self._index, item=item, sequence_number=self.next_number())

    def _part(self, kind: str, message: _Message) -> PartEvent:
        return PartEvent(
            type=kind,
            item_id=message.id,
            output_index=self._index,
            content_index=0,
            part=message.part(),
            sequence_number=self.next_number(),
        )


def end_event(response: Response, number: int) -> ResponseEvent:
    """The event that tells how a response ended. A cancelled one has no event of its own in OpenAI's document: it ends
    as an incomplete one, and its status tells."""
    kind = "incomplete" if response.status == "cancelled" else response.status
    return ResponseEvent(type=f"response.{kind}", response=response, sequence_number=number)


def item_id(prefix: str, response_id: str, number: int) -> str:
    """Id of an item of a response. It tells the response, so a reference to the item is resolved without an index."""
    return f"{prefix}{response_id.removeprefix('resp_')}_{number:x}"


def response_of_item(reference: str) -> str | None:
    """Id of the response in which an item with this id would be; None where the id is not one of ours."""
    parts = reference.split("_")
    return f"resp_{parts[1]}" if len(parts) == 3 else None
