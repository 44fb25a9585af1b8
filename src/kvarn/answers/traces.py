"""Traces of requests: what a settled record tells the exporter of spans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.observer import AnswerListener, Observer
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import GeneratedPrompt, Turn
from kvarn.clock import SYSTEM_CLOCK
from kvarn.observe.traces.context import begin, parent_of
from kvarn.observe.traces.exporter import SpanExporter
from kvarn.observe.traces.traced import TracedRequest, TracedTurn

if TYPE_CHECKING:
    from kvarn.answers.question import Question

MAX_CONTENT_CHARS = 65_536
"""Characters of a prompt and of each answer that go with a span; the rest is cut off."""


class Traces(Observer):
    """Gives requests their place in a trace, and exports their spans when they are over.

    Args:
        exporter: Sends spans; None: the client's trace is only passed on to other servers.
        contents: Send prompts and answers with them.
    """

    def __init__(self, exporter: SpanExporter | None = None, *, contents: bool = False) -> None:
        self.exporter = exporter
        self._contents: dict[str, _Contents] | None = {} if exporter is not None and contents else None

    def begin(self, record: RequestRecord, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Find the place in a trace of a request with these headers."""
        parent = parent_of(headers)
        if self.exporter is None:
            record.timeline.trace = parent
            return
        trace = begin(record.id, parent)
        record.timeline.trace = trace if self.exporter.wants(trace) else trace._replace(sampled=False)

    def listen(self, turn: Turn, question: Question[Any, Any]) -> AnswerListener | None:
        """Keep what is written, where contents are sent."""
        if self._contents is None:
            return None
        assert isinstance(turn.prompt, GeneratedPrompt)
        contents = self._contents[turn.id] = _Contents(turn.prompt.logged())
        return contents

    def ended(self, record: RequestRecord, name: str, method: str = "", route: str = "") -> None:
        """Export the spans of a request that is over."""
        exporter = self.exporter
        if exporter is None:
            return
        trace = record.timeline.trace or begin(record.id, None)
        kept = self._contents if self._contents is not None else {}
        contents = [kept.pop(turn.id, None) for turn in record.turns]
        if not exporter.wants(trace):
            return
        owner, choice = record.principal.owner, record.choice
        request = TracedRequest(
            trace=trace,
            name=name,
            request_id=record.request_id,
            method=method,
            route=route or record.endpoint,
            status=record.reply.status,
            disconnected=record.reply.disconnected,
            organization_id=owner.organization_id,
            project_id=owner.project_id,
            key_id=record.principal.key_id or "",
            model=choice.name,
            model_route="" if choice.route is None else choice.route.name,
            wall_clock_offset_s=SYSTEM_CLOCK.time() - SYSTEM_CLOCK.now(),
            events=record.timeline.events,
            turns=[_traced_turn(turn, each) for turn, each in zip(record.turns, contents, strict=True)],
        )
        exporter.add(request)


def _traced_turn(turn: Turn, contents: _Contents | None) -> TracedTurn:
    usage = turn.usage
    return TracedTurn(
        id=turn.engine_id,
        model=turn.model,
        model_version=turn.model_version,
        adapter=turn.adapter,
        replica=turn.replica,
        service_tier=turn.service_tier,
        outcome=turn.outcome.value,
        refused=usage.refused,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        max_tokens=turn.max_output_tokens if turn.output_bounded and turn.max_output_tokens else None,
        choices=turn.sequences,
        finish_reasons=usage.finish_reasons,
        contents=dict if contents is None else contents.attributes,
    )


class _Contents:
    """A prompt and the choices of its answer, in the shape of the GenAI conventions."""

    def __init__(self, prompt: dict[str, Any]) -> None:
        messages = prompt.get("messages") or [{"role": "user", "content": prompt.get("prompt")}]
        self._messages = messages
        self._choices: dict[int, str] = {}
        self._ends: dict[int, str] = {}

    def take(self, delta: ChoiceDelta) -> None:
        """Keep what was written."""
        before = self._choices.setdefault(delta.index, "")
        if len(before) < MAX_CONTENT_CHARS:
            self._choices[delta.index] = before + delta.written
        if delta.finish_reason is not None:
            self._ends[delta.index] = delta.finish_reason

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes."""

    def attributes(self) -> dict[str, str]:
        """Both as JSON. Called in the exporter's thread."""
        asked = [_message(each.get("role", "user"), each.get("content")) for each in self._messages]
        answers = [
            _message("assistant", text) | {"finish_reason": self._ends.get(index, "error")}
            for index, text in sorted(self._choices.items())
        ]
        return {
            "gen_ai.input.messages": msgspec.json.encode(asked).decode(),
            "gen_ai.output.messages": msgspec.json.encode(answers).decode(),
        }


def _message(role: str, content: object) -> dict[str, Any]:
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return {"role": role, "parts": [{"type": "text", "content": text[:MAX_CONTENT_CHARS]}]}
