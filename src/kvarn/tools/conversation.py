"""The part of a conversation that a loop adds: turns as they are read, and the messages that the next turn sees."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvarn.answers.choice import ChoiceDelta
from kvarn.retrieval.citations import Annotated, CitationReader
from kvarn.tools.types import ToolCall
from kvarn.wire.openai.chat.answer import ToolCallDelta
from kvarn.wire.openai.chat.messages import AssistantMessage, Message, ToolMessage

LEFT_OUT = "[The result was left out: the model's context has no room for it.]"


@dataclass(slots=True)
class TurnReader:
    """Reads one turn: its text, and its calls. Those of tools that run here are taken out of its deltas."""

    ours: Container[str]
    citations: CitationReader | None = None
    """Takes citations out of the text; None: there is nothing to cite."""
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    """Calls of tools that run here; none where the answer was cut off."""
    others: bool = False
    """The model has called functions of the client, too."""
    _open: tuple[str, str] | None = None
    _arguments: list[str] = field(default_factory=list)
    _is_open_ours: bool = False
    _shown: dict[int, int] = field(default_factory=dict)

    def take(self, delta: ChoiceDelta) -> ChoiceDelta:
        """The delta as it is passed on."""
        if delta.parts is not None:
            delta.parts = [part for part in delta.parts if not isinstance(part, ToolCallDelta) or self._passes(part)]
            delta.parts = [self._renumbered(part) if isinstance(part, ToolCallDelta) else part for part in delta.parts]
        self.token_ids += delta.token_ids
        self.texts.append(delta.text)
        self.thoughts.append(delta.reasoning)
        if self.citations is not None:
            self._cite(delta, self.citations)
        if delta.finish_reason is not None:
            self._end(delta)
        return delta

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.thoughts)

    def _cite(self, delta: ChoiceDelta, citations: CitationReader) -> None:
        """Take the marks out of the text of a delta; the model's next turn still sees them."""
        read: list[Annotated] = []

        def without_marks(text: str) -> str:
            read.append(citations.feed(text))
            return read[-1].text

        parts = [delta.text] if delta.parts is None else delta.parts
        shown = [without_marks(part) if isinstance(part, str) else part for part in parts]
        if delta.finish_reason is not None:
            read.append(citations.finish())
            shown.append(read[-1].text)
        delta.text = "".join(part for part in shown if isinstance(part, str))
        delta.parts = None if delta.parts is None else shown
        delta.annotations = [dict(each) for piece in read for each in piece.annotations] or None

    def _passes(self, part: ToolCallDelta) -> bool:
        if isinstance(part.id, str):
            self._close()
            name = part.function.name if isinstance(part.function.name, str) else ""
            self._is_open_ours = name in self.ours
            if self._is_open_ours:
                self._open = (part.id, name)
            else:
                self.others = True
        if self._is_open_ours and isinstance(part.function.arguments, str):
            self._arguments.append(part.function.arguments)
        return not self._is_open_ours

    def _renumbered(self, part: ToolCallDelta) -> ToolCallDelta:
        """A call of the client's with its place among these alone."""
        index = self._shown.setdefault(part.index, len(self._shown))
        if index == part.index:
            return part
        return ToolCallDelta(index=index, function=part.function, id=part.id, type=part.type)

    def _close(self) -> None:
        if self._open is not None:
            self.calls.append(ToolCall(*self._open, "".join(self._arguments) or "{}"))
        self._open, self._arguments = None, []

    def _end(self, delta: ChoiceDelta) -> None:
        if delta.cut_call and self._is_open_ours:
            self._open, delta.cut_call = None, False
        self._close()
        if delta.finish_reason not in ("stop", "tool_calls"):
            self.calls = []
        if self.calls:
            delta.finish_reason = None


@dataclass(slots=True)
class Exchange:
    """Messages that stand behind those of the request."""

    messages: list[Message] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add_turn(self, turn: TurnReader, results: Sequence[tuple[ToolCall, str]]) -> None:
        """A turn of the model, and what it is shown of the results of its calls."""
        said: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
        if turn.reasoning:
            said["reasoning_content"] = turn.reasoning
        said["tool_calls"] = [chat_call(call.id, call.name, call.arguments) for call, _ in results]
        self.messages.append(AssistantMessage.model_validate(said))
        self.messages += [ToolMessage(role="tool", tool_call_id=call.id, content=shown) for call, shown in results]

    def drop_results(self) -> bool:
        """Leave out the results of the last turn; False: there are none, or they were left out already."""
        found = False
        for place in range(len(self.messages) - 1, -1, -1):
            message = self.messages[place]
            if not isinstance(message, ToolMessage) or message.content == LEFT_OUT:
                break
            self.messages[place] = message.model_copy(update={"content": LEFT_OUT})
            found = True
        return found


def chat_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
