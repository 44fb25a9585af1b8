"""From the deltas of a chat's answer to a response and the events of its stream.

A writer is a pure machine: the same parts give the same events with the same numbers. So a stream can be sent again
from what is stored: the finished response, and where its deltas were cut (`replay`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from kvarn.answers.choice import ChoiceDelta
from kvarn.responses.hosted_events import EventParts, added, closing, opening
from kvarn.responses.tools import CustomInput, offered_tools
from kvarn.text.reasoning.splitter import Reasoning
from kvarn.wire.openai.chat.answer import FinishReason, TokenLogprobs, ToolCallDelta
from kvarn.wire.openai.responses.answer import (
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
    StreamEvent,
)
from kvarn.wire.openai.responses.items import CALLS, PREFIXES, StoredItem, output_text, reasoning_text

Cuts = list[list[list[int]]]
"""For each item its deltas, each as [characters, tokens with log-probabilities]."""


@dataclass(slots=True)
class _Item:
    type: Literal["message", "reasoning", "function_call", "custom_tool_call"]
    id: str = ""
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    texts: list[str] = field(default_factory=list)
    """Pieces of the message or the reasoning, or of the call's arguments or input."""
    input: CustomInput | None = None
    """Reads the input of a call out of its arguments, where it is plain text."""
    logprobs: list[TokenLogprobs | Raw] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self, status: str) -> StoredItem:
        head: StoredItem = {"id": self.id, "type": self.type, "status": status}
        if self.type in CALLS:
            said = {"input" if self.input else "arguments": "".join(self.texts)}
            named = {"namespace": self.namespace} if self.namespace else {}
            return head | {"call_id": self.call_id, "name": self.name, **said, **named}
        head["content"] = [] if status == "in_progress" else [self.part()]
        return {**head, "role": "assistant"} if self.type == "message" else {**head, "summary": []}

    def part(self) -> dict[str, Any]:
        text = "".join(self.texts)
        return output_text(text, self.logprobs, self.annotations) if self.type == "message" else reasoning_text(text)


class ResponseWriter:
    """Writes one response. `first_item`: number of the first item of its output among its items; those of the input
    come before."""

    def __init__(self, response: Response, first_item: int) -> None:
        self.response = response
        self.cuts: Cuts = []
        self.begun = False
        self._first_item = first_item
        self._number = 0
        self._open: _Item | None = None
        self._tools = {tool.chat_name: tool for tool in offered_tools(response.tools)}
        self._logprobs: list[TokenLogprobs | Raw] = []
        """Log-probabilities of tokens whose text has not come yet."""
        self._hosted: StoredItem | None = None
        """The call that a tool of the server works on."""

    def queue(self) -> list[StreamEvent]:
        self.response = replace(self.response, status="queued")
        return [self._state("response.created"), self._state("response.queued")]

    def begin(self) -> list[StreamEvent]:
        self.begun = True
        opening = [] if self._number else [self._state("response.created")]
        self.response = replace(self.response, status="in_progress")
        return [*opening, self._state("response.in_progress")]

    def take(self, delta: ChoiceDelta) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        self._logprobs = [*self._logprobs, *(delta.logprobs or ())][delta.reasoning_tokens :]
        for part in [delta.text] if delta.parts is None else delta.parts:
            if isinstance(part, ToolCallDelta):
                events += self._call(part)
            elif isinstance(part, Reasoning):
                events += self._reasoning(part.text)
            elif part:
                events += self._text(part)
        if delta.annotations:
            events += self._open_texts("message")
            assert self._open is not None
            self._open.annotations += delta.annotations
        if delta.cut_call:
            events += self.close_item("incomplete")
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
        self._number += 1
        return end_event(self.response, self._number - 1)

    def begin_call(self, item: StoredItem) -> list[StreamEvent]:
        """A tool of the server begins to work on a call, which is told as an item without its id."""
        events = self.close_item("completed")
        self._hosted = self._named(item)
        self.cuts.append([])
        events.append(self._event("response.output_item.added", output_index=self._index, item=added(self._hosted)))
        return events + self._about(self._hosted["id"], opening(self._hosted))

    def end_call(self, fields: StoredItem) -> list[StreamEvent]:
        """It has ended; `fields` of its item are new or other than before."""
        assert self._hosted is not None
        item, self._hosted = self._hosted | fields, None
        return [*self._about(item["id"], closing(item)), self._add_item(item)]

    def add_hosted(self, item: StoredItem) -> list[StreamEvent]:
        """An item of a tool of the server that is whole: a list of a server's tools, a request for approval."""
        return self.begin_call(item) + self.end_call({})

    def open_message(self) -> list[StreamEvent]:
        return self._open_texts("message")

    def refuse(self, text: str) -> list[StreamEvent]:
        """The answer ends with a refusal: a message of its own, since what came before it was no part of it."""
        events = self._open_item(_Item("message"), "incomplete")
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
        if self._hosted is not None:  # cancelled: its tool has been stopped
            return self.end_call({"status": "failed" if self._hosted["type"] == "web_search_call" else "incomplete"})
        closed = self._open
        if closed is None:
            return []
        events: list[StreamEvent] = []
        if closed.input is not None:
            if rest := closed.input.rest():
                events.append(self._call_delta(rest))
            names = {"item_id": closed.id, "output_index": self._index}
            events.append(self._event("response.custom_tool_call_input.done", input="".join(closed.texts), **names))
            self._open = None
            return [*events, self._add_item(closed.as_json(status))]
        text = "".join(closed.texts)
        if closed.type == "function_call":
            names = {"item_id": closed.id, "name": closed.name, "output_index": self._index}
            events = [self._event("response.function_call_arguments.done", arguments=text, **names)]
        else:
            if closed.type == "message":
                events = [
                    self._at_part("response.output_text.annotation.added", annotation=each, annotation_index=number)
                    for number, each in enumerate(closed.annotations)
                ]
                done = self._at_part("response.output_text.done", text=text, logprobs=closed.logprobs)
            else:
                done = self._at_part("response.reasoning_text.done", text=text)
            events += [done, self._at_part("response.content_part.done", part=closed.part())]
        self._open = None
        return [*events, self._add_item(closed.as_json(status))]

    def _text(self, text: str) -> list[StreamEvent]:
        events = self._open_texts("message")
        message, logprobs = self._open, self._logprobs
        assert message is not None
        message.texts.append(text)
        message.logprobs += logprobs
        self.cuts[-1].append([len(text), len(logprobs)])
        self._logprobs = []
        return [*events, self._at_part("response.output_text.delta", delta=text, logprobs=logprobs)]

    def _reasoning(self, text: str) -> list[StreamEvent]:
        events = self._open_texts("reasoning")
        assert self._open is not None
        self._open.texts.append(text)
        self.cuts[-1].append([len(text), 0])
        return [*events, self._at_part("response.reasoning_text.delta", delta=text)]

    def _call(self, delta: ToolCallDelta) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if isinstance(delta.id, str):
            name = delta.function.name
            events += self._open_item(self._call_item(delta.id, name if isinstance(name, str) else ""))
            self._logprobs = []  # those of the call itself belong to no text
        call, text = self._open, delta.function.arguments
        if isinstance(text, str) and call is not None and call.type in CALLS:
            text = text if call.input is None else call.input.take(text)
            events += [self._call_delta(text)] if text else []
        return events

    def _call_item(self, call_id: str, name: str) -> _Item:
        tool = self._tools.get(name)
        if tool is None:
            return _Item("function_call", call_id=call_id, name=name)
        named: Any = {"call_id": call_id, "name": tool.name, "namespace": tool.namespace}
        if tool.is_custom:
            return _Item("custom_tool_call", **named, input=CustomInput())
        return _Item("function_call", **named)

    def _call_delta(self, text: str) -> StreamEvent:
        call = self._open
        assert call is not None
        call.texts.append(text)
        self.cuts[-1].append([len(text), 0])
        kind = "function_call_arguments" if call.input is None else "custom_tool_call_input"
        return self._event(f"response.{kind}.delta", item_id=call.id, output_index=self._index, delta=text)

    @property
    def _index(self) -> int:
        return len(self.response.output)

    def _open_texts(self, kind: Literal["message", "reasoning"]) -> list[StreamEvent]:
        if self._open is not None and self._open.type == kind:
            return []
        opened = _Item(kind)
        events = self._open_item(opened)
        return [*events, self._at_part("response.content_part.added", part=opened.part())]

    def _open_item(self, opened: _Item, status_before: str = "completed") -> list[StreamEvent]:
        """End the open item, name the new one and begin it."""
        events = self.close_item(status_before)
        opened.id = self._named({"type": opened.type})["id"]
        self._open = opened
        self.cuts.append([])
        item = opened.as_json("in_progress")
        kind = "response.output_item.added"
        return [*events, self._event(kind, output_index=self._index, item=item)]

    def _named(self, item: StoredItem) -> StoredItem:
        name = item_id(PREFIXES[item["type"]], self.response.id, self._first_item + self._index)
        return {"id": name} | item | {"id": name}  # first of its fields, whatever id it had

    def _about(self, name: str, parts: Iterable[EventParts]) -> list[StreamEvent]:
        place = {"item_id": name, "output_index": self._index}
        return [self._event(f"response.{kind}", **fields, **place) for kind, fields in parts]

    def _add_item(self, item: StoredItem) -> StreamEvent:
        done = self._event("response.output_item.done", output_index=self._index, item=item)
        self.response = replace(self.response, output=[*self.response.output, item])
        return done

    def _state(self, kind: str) -> StreamEvent:
        return self._event(kind, response=self.response)

    def _at_part(self, kind: str, **fields: Any) -> StreamEvent:
        assert self._open is not None
        return self._event(kind, item_id=self._open.id, output_index=self._index, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> StreamEvent:
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
