"""From the deltas of a chat's answer to a response and the events of its stream.

A writer is a pure machine: the same parts give the same events with the same numbers. So a stream can be sent again
from what is stored: the finished response, and where its deltas were cut (`replay`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from kvarn.serving.choice import ChoiceDelta
from kvarn.wire.openai.chat.answer import FinishReason, TokenLogprobs, ToolCallDelta
from kvarn.wire.openai.responses.answer import (
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
    StreamEvent,
)
from kvarn.wire.openai.responses.items import StoredItem, output_text

Cuts = list[list[list[int]]]
"""For each item its deltas, each as [characters, tokens with log-probabilities]."""


@dataclass(slots=True)
class _Item:
    """The message or the function call that is being written."""

    id: str
    call_id: str = ""
    name: str = ""
    """Of the function; empty for a message."""
    texts: list[str] = field(default_factory=list)
    """Of the message, or the call's arguments."""
    logprobs: list[TokenLogprobs | Raw] = field(default_factory=list)

    @property
    def is_message(self) -> bool:
        return not self.call_id

    def as_json(self, status: str) -> StoredItem:
        if self.is_message:
            content = [] if status == "in_progress" else [self.part()]
            return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}
        names = {"call_id": self.call_id, "name": self.name, "arguments": "".join(self.texts)}
        return {"id": self.id, "type": "function_call", "status": status, **names}

    def part(self) -> dict[str, Any]:
        return output_text("".join(self.texts), self.logprobs)


class ResponseWriter:
    """Writes one response.

    Args:
        response: As the request has it, nothing written yet.
        first_item: Number of the first item of its output among its items; those of the input come before.
    """

    def __init__(self, response: Response, first_item: int) -> None:
        self.response = response
        self.cuts: Cuts = []
        self.begun = False
        """Whether the model has begun."""
        self._first_item = first_item
        self._number = 0
        self._open: _Item | None = None
        self._logprobs: list[TokenLogprobs | Raw] = []
        """Of tokens whose text has not come yet."""

    def queue(self) -> list[StreamEvent]:
        """It waits for its turn."""
        self.response = replace(self.response, status="queued")
        return [self._state("response.created"), self._state("response.queued")]

    def begin(self) -> list[StreamEvent]:
        """The model has begun."""
        self.begun = True
        opening = [] if self._number else [self._state("response.created")]
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
            details = {"reason": reasons[finish_reason]}
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
        self._number += 1
        return end_event(self.response, self._number - 1)

    def open_message(self) -> list[StreamEvent]:
        """Begin a message."""
        events = self._open_item(_Item(""))
        assert self._open is not None
        return [*events, self._at_part("response.content_part.added", part=self._open.part())]

    def refuse(self, text: str) -> list[StreamEvent]:
        """The answer ends with a refusal: a message of its own, since what came before it was no part of it."""
        events = self._open_item(_Item(""), "incomplete")
        opened, self._open = self._open, None
        assert opened is not None
        part = {"type": "refusal", "refusal": text}
        place = {"item_id": opened.id, "output_index": self._index, "content_index": 0}
        events += [
            self._event("response.content_part.added", part={**part, "refusal": ""}, **place),
            self._event("response.refusal.delta", delta=text, **place),
            self._event("response.refusal.done", refusal=text, **place),
            self._event("response.content_part.done", part=part, **place),
        ]
        return [*events, self._add_item(opened.as_json("completed") | {"content": [part]})]

    def close_item(self, status: str) -> list[StreamEvent]:
        """End the item that is being written, if there is one."""
        closed = self._open
        if closed is None:
            return []
        text = "".join(closed.texts)
        events: list[StreamEvent]
        if closed.is_message:
            done = self._at_part("response.output_text.done", text=text, logprobs=closed.logprobs)
            events = [done, self._at_part("response.content_part.done", part=closed.part())]
        else:
            names = {"item_id": closed.id, "name": closed.name, "output_index": self._index}
            events = [self._event("response.function_call_arguments.done", arguments=text, **names)]
        self._open = None
        return [*events, self._add_item(closed.as_json(status))]

    def _text(self, text: str) -> list[StreamEvent]:
        events = [] if self._open is not None and self._open.is_message else self.open_message()
        message, logprobs = self._open, self._logprobs
        assert message is not None
        message.texts.append(text)
        message.logprobs += logprobs
        self.cuts[-1].append([len(text), len(logprobs)])
        self._logprobs = []
        return [*events, self._at_part("response.output_text.delta", delta=text, logprobs=logprobs)]

    def _call(self, delta: ToolCallDelta) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if isinstance(delta.id, str):
            name = delta.function.name
            events += self._open_item(_Item("", delta.id, name if isinstance(name, str) else ""))
            self._logprobs = []  # those of the call itself belong to no text
        call, text = self._open, delta.function.arguments
        if isinstance(text, str) and text and call is not None and not call.is_message:
            call.texts.append(text)
            self.cuts[-1].append([len(text), 0])
            events.append(
                self._event(
                    "response.function_call_arguments.delta", item_id=call.id, output_index=self._index, delta=text
                )
            )
        return events

    @property
    def _index(self) -> int:
        """Of the open item in the output."""
        return len(self.response.output)

    def _open_item(self, opened: _Item, status_before: str = "completed") -> list[StreamEvent]:
        """End the open item, name the new one and begin it."""
        events = self.close_item(status_before)
        prefix = "msg_" if opened.is_message else "fc_"
        opened.id = item_id(prefix, self.response.id, self._first_item + self._index)
        self._open = opened
        self.cuts.append([])
        item = opened.as_json("in_progress")
        kind = "response.output_item.added"
        return [*events, self._event(kind, output_index=self._index, item=item)]

    def _add_item(self, item: StoredItem) -> StreamEvent:
        """Add a finished item to the output."""
        done = self._event("response.output_item.done", output_index=self._index, item=item)
        self.response = replace(self.response, output=[*self.response.output, item])
        return done

    def _state(self, kind: str) -> StreamEvent:
        return self._event(kind, response=self.response)

    def _at_part(self, kind: str, **fields: Any) -> StreamEvent:
        """An event of the open message's only part."""
        assert self._open is not None
        return self._event(kind, item_id=self._open.id, output_index=self._index, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> StreamEvent:
        """An event with the next number."""
        self._number += 1
        return StreamEvent(type=kind, sequence_number=self._number - 1, **fields)


def end_event(response: Response, number: int) -> StreamEvent:
    """The event that tells how a response ended. A cancelled one has no event of its own in OpenAI's document: it ends
    as an incomplete one, and its status tells."""
    kind = "incomplete" if response.status == "cancelled" else response.status
    return StreamEvent(type=f"response.{kind}", response=response, sequence_number=number)


def item_id(prefix: str, response_id: str, number: int) -> str:
    """Id of an item of a response. It tells the response, so a reference to the item is resolved without an index."""
    return f"{prefix}{response_id.removeprefix('resp_')}_{number:x}"


def response_of_item(reference: str) -> str | None:
    """Id of the response in which an item with this id would be; None where the id is not one of ours."""
    parts = reference.split("_")
    return f"resp_{parts[1]}" if len(parts) == 3 else None
