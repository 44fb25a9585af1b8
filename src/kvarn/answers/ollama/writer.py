"""From the deltas of an answer to the lines of Ollama's stream, or to one object."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, Raw

from kvarn.answers.chat.tool_calls import arguments_object
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import TokenUsage
from kvarn.clock import SYSTEM_CLOCK
from kvarn.text.reasoning.splitter import Reasoning
from kvarn.wire.ollama.answers import Answer, AnswerMessage, Call, ChatAnswer, GenerateAnswer, ToolCall
from kvarn.wire.openai.chat.answer import TokenLogprobs, ToolCallDelta

_REASONS = {"length": "length", "content_filter": "content_filter"}


@dataclass(slots=True)
class Written:
    """Pieces of one line, or of the whole answer."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprobs | Raw] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((*self.texts, *self.thoughts, self.calls, self.logprobs))

    def add(self, other: Written) -> None:
        self.texts += other.texts
        self.thoughts += other.thoughts
        self.calls += other.calls
        self.logprobs += other.logprobs


@dataclass(slots=True)
class AnswerWriter:
    """Writes one answer. A call is written once it is complete."""

    record: RequestRecord
    model: str
    usage: TokenUsage
    is_chat: bool
    context: list[int] | None = None  # tokens of prompt and answer; None: not sent
    started: float = field(default_factory=SYSTEM_CLOCK.now)  # monotonic seconds at which the engine got it
    _open: tuple[str, str, list[str]] | None = None  # id, name and arguments of the call that is being written
    _calls: int = 0

    def read(self, delta: ChoiceDelta) -> Written:
        """Take the next delta; give what it adds, with calls that it completes."""
        new = Written(logprobs=delta.logprobs or [])
        for part in [delta.text] if delta.parts is None else delta.parts:
            if isinstance(part, ToolCallDelta):
                self._read_call(part, new)
            elif isinstance(part, Reasoning):
                new.thoughts.append(part.text)
            else:
                new.texts.append(part)
        if delta.refusal:  # there is no field to say it in
            new.texts.append(f"\n[{delta.refusal}]")
        if delta.cut_call:  # it is no call
            self._open = None
        if delta.finish_reason is not None:
            self._end_call(new)
        if self.context is not None:
            self.context += delta.token_ids
        return new

    def line(self, new: Written) -> Answer:
        return self._answer(new, {"done": False})

    def last(self, written: Written, delta: ChoiceDelta) -> Answer:
        """The end of the answer, with what was written and not yet sent; `delta` is the last one."""
        now, usage = SYSTEM_CLOCK.now(), self.usage
        first = min(usage.first_token or now, now)
        counts = {
            "done_reason": _REASONS.get(delta.finish_reason or "", "stop"),
            "total_duration": nanoseconds(now - self.record.timeline.received_s),
            "load_duration": nanoseconds(self.started - self.record.timeline.received_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first - self.started),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(now - first),
            "warnings": delta.warnings or UNSET,
        }
        return self._answer(written, {"done": True, **counts})

    def _answer(self, written: Written, fields: dict[str, Any]) -> Answer:
        fields |= {"model": self.model, "created_at": datetime.now(UTC), "logprobs": written.logprobs or UNSET}
        text, thinking = "".join(written.texts), "".join(written.thoughts) or UNSET
        if self.is_chat:
            calls = written.calls or UNSET
            message = AnswerMessage(content=text, thinking=thinking, tool_calls=calls)
            return ChatAnswer(message=message, **fields)
        context = self.context if fields["done"] and self.context is not None else UNSET
        return GenerateAnswer(response=text, thinking=thinking, context=context, **fields)

    def _read_call(self, call: ToolCallDelta, new: Written) -> None:
        if isinstance(call.id, str) and isinstance(call.function.name, str):
            self._end_call(new)
            self._open = (call.id, call.function.name, [])
        if self._open is not None and isinstance(call.function.arguments, str):
            self._open[2].append(call.function.arguments)

    def _end_call(self, new: Written) -> None:
        if self._open is not None:
            call_id, name, pieces = self._open
            call = Call(index=self._calls, name=name, arguments=arguments_object("".join(pieces)))
            new.calls.append(ToolCall(id=call_id, function=call))
            self._open, self._calls = None, self._calls + 1


def loaded(model: str, *, is_chat: bool, unloaded: bool) -> Answer:
    """The answer to a request that asks for nothing but that the model be there, or go."""
    fields: dict[str, Any] = {"model": model, "created_at": datetime.now(UTC), "done": True}
    fields["done_reason"] = "unload" if unloaded else "load"
    return ChatAnswer(message=AnswerMessage(content=""), **fields) if is_chat else GenerateAnswer(response="", **fields)


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama gives it; at least one, since clients divide by it."""
    return max(1, round(seconds * 1e9))
