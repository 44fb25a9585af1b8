"""Spans of a request: a tree, made once of its timeline.

    POST /v1/chat/completions                    the request, from its headers to its last byte
      authenticate · read body · parse · ...     parts of the gateway, one after the other
      stage admission · ...                      stages
      chat NAME                                  a turn, from when it is sent to an engine
        queue                                    its waits by reason are attributes
          fetch · grammar · adapter              what it waited for, where that was something of its own
        prefill
          chunk · chunk                          parts of the prompt, each a step or more
        decode
        preempted
      run tools                                  calls of one turn, some at once
        execute_tool NAME

A part of the gateway is named after the event that ends it; parts and turns follow one another without a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from kvarn.observe.segments import EngineTurn, Segment, engine_turns, segments
from kvarn.observe.timeline import WAITS, Event, Phase
from kvarn.observe.traces import conventions
from kvarn.observe.traces.conventions import Attributes
from kvarn.observe.traces.traced import TracedRequest, TracedTool, TracedTurn


class SpanKind(IntEnum):
    INTERNAL = 1
    SERVER = 2


@dataclass(slots=True)
class SpanEvent:
    name: str
    at_s: float
    attributes: Mapping[str, float]


@dataclass(slots=True)
class Span:
    """A span; times in seconds of the timeline's clock."""

    name: str
    begin_s: float
    end_s: float
    parent: int | None
    """Place of its parent in the list; None: the request's own span."""
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    events: list[SpanEvent] = field(default_factory=list)
    failed: bool = False


_PARTS = {
    "authenticated": "authenticate",
    "read": "read body",
    "parsed": "parse",
    "held": "wait for a replica",
    "resolved": "resolve model",
    "templated": "render template",
    "tokenized": "tokenize",
    "prompted": "prepare prompt",
    "moderated": "moderate prompt",
    "tools": "run tools",
    "sent": "submit",
    "settled": "settle",
    "ended": "end",
}
"""Names of the gateway's parts, by the event that ends them."""


def request_spans(
    request: TracedRequest, *, vllm: bool = False, contents: Sequence[Mapping[str, str]] = ()
) -> list[Span]:
    """The spans of a request, its own first; each child stands behind its parent. `vllm`: turns have the attributes of
    vLLM's spans, too. `contents`: more attributes of each turn."""
    parts = segments(request.events)
    attributes = conventions.request_attributes(request)
    kind = SpanKind.SERVER if request.method else SpanKind.INTERNAL
    begin_s = request.events[0].at_s
    end_s = parts[-1].end_s if parts else begin_s
    spans = [Span(request.name, begin_s, end_s, None, kind, attributes, failed=request.is_error)]
    turns, more = iter(request.turns), iter(contents)
    for part in parts:
        if part.event is not None:
            name = _PARTS.get(part.event.name) or part.event.name.replace(".", " ", 1)
            own = len(spans)
            spans.append(Span(name, part.begin_s, part.end_s, 0, attributes=dict(part.event.numbers)))
            if part.event.name == "tools":
                spans += [_tool_span(each, own) for each in request.tools if part.begin_s <= each.end_s <= part.end_s]
            continue
        own = len(spans)
        _add_turn(spans, request, next(turns, None), part)
        spans[own].attributes |= next(more, {})
        if vllm:
            spans[own].attributes |= _vllm(spans[own:], request)
    return spans


def _tool_span(call: TracedTool, parent: int) -> Span:
    attributes = conventions.tool_attributes(call)
    return Span(
        f"execute_tool {call.name}",
        call.begin_s,
        call.end_s,
        parent,
        attributes=attributes,
        failed=call.status == "failed",
    )


def _vllm(spans: Sequence[Span], request: TracedRequest) -> Attributes:
    """The attributes that vLLM's span of a turn has; the turn's span is the first."""
    turn, received_s = spans[0], next((e.at_s for e in request.events if e.name == "read"), request.events[0].at_s)
    seconds = {each.name: each.end_s - each.begin_s for each in reversed(spans)}
    parts: dict[str, float] = {name: seconds[name] for name in ("queue", "prefill", "decode") if name in seconds}
    first = next((event.at_s for event in turn.events if event.name == "first_token"), None)
    if first is not None:
        parts["first"] = first - received_s
    return conventions.vllm_attributes(turn.attributes, parts | {"total": turn.end_s - received_s})


def _add_turn(spans: list[Span], request: TracedRequest, turn: TracedTurn | None, part: Segment) -> None:
    operation = conventions.operation_of(request.route)
    model = request.model if turn is None else turn.model
    span = Span(f"{operation} {model}", part.begin_s, part.end_s, 0)
    if turn is not None:
        span.attributes = conventions.turn_attributes(request, turn)
        span.failed = turn.outcome == "failed"
    span.events = [SpanEvent(each.name, each.at_s, each.numbers) for each in part.turn[1:] if each.name != "generated"]
    own = len(spans)
    spans.append(span)
    for told in engine_turns(each for each in request.events if part.begin_s <= each.at_s <= part.end_s):
        spans.extend(_engine_spans(told, own, len(spans)))


def _engine_spans(told: EngineTurn, turn: int, place: int) -> Iterator[Span]:
    """The spans of one request to an engine. `turn`: place of their parent; `place`: of the first of them."""
    events, moments, spent, last_s = told.events, told.first, told.spent, told.end_s
    queued, scheduled = moments.get("queued"), moments.get("scheduled")
    first, finished = moments.get("first_token"), moments.get("finished")
    if queued is not None:
        queue = place
        until = last_s if scheduled is None else scheduled.at_s
        waits = {f"kvarn.{phase.name.lower()}_s": spent[phase] for phase in WAITS if spent.get(phase)}
        yield Span("queue", queued.at_s, until, turn, attributes={**_named(queued), **waits})
        place += 1
        for name, ready, phase in (
            ("grammar", "mask_ready", Phase.WAIT_MASK),
            ("adapter", "adapter_ready", Phase.WAIT_ADAPTER),
            ("fetch", "fetch_ended", Phase.WAIT_FETCH),
        ):
            if ready in moments:
                at_s, begun = moments[ready].at_s, moments.get("fetch_begun") if name == "fetch" else None
                begin_s = max(queued.at_s, at_s - spent.get(phase, 0.0)) if begun is None else begun.at_s
                yield Span(name, begin_s, at_s, queue, attributes=_named(begun))
                place += 1
    if scheduled is not None:
        prefill, until = place, last_s if first is None else first.at_s
        yield Span("prefill", scheduled.at_s, until, turn, attributes=_named(scheduled))
        place += 1
        chunks = [event for event in events if event.name == "engine.chunk" and event.at_s <= until]
        ends = [*(chunk.at_s for chunk in chunks[1:]), until]
        for chunk, end_s in zip(chunks, ends, strict=False):
            yield Span("chunk", chunk.at_s, end_s, prefill, attributes=_named(chunk))
            place += 1
    if first is not None:
        yield Span("decode", first.at_s, last_s, turn, attributes=_named(finished))
    since: Event | None = None
    for event in events:
        if event.name == "engine.preempted":
            since = since or event
        elif event.name == "engine.resumed" and since is not None:
            yield Span("preempted", since.at_s, event.at_s, turn, attributes={**_named(since), **_named(event)})
            since = None


def _named(event: Event | None) -> Attributes:
    return {} if event is None else {f"kvarn.{name}": value for name, value in event.numbers.items()}
