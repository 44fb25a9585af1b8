"""Spans: a tree without gaps, made of the events of a request and of its engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from msgspec.structs import replace

from kvarn.observe.timeline import EngineEventKind, Event, Phase, Timeline, engine_events
from kvarn.observe.traces.context import begin
from kvarn.observe.traces.otlp import encode
from kvarn.observe.traces.spans import Span, SpanKind, request_spans
from kvarn.observe.traces.traced import TracedRequest, TracedTool, TracedTurn
from otlp_sink import attributes_of, parsed

K = EngineEventKind
GATEWAY = [
    ("received", 0.0),
    ("authenticated", 0.01),
    ("parsed", 0.02),
    ("resolved", 0.03),
    ("stage.admission", 0.05),
    ("sent", 0.06),
    ("first_token", 1.1),
    ("generated", 2.1),
    ("settled", 2.2),
    ("ended", 2.3),
]
FIRST = [
    *(K.QUEUED, 0, 3),
    *(K.MASK_READY, 200_000),
    *(K.FETCH_BEGUN, 210_000, 8),
    *(K.FETCH_ENDED, 300_000),
    *(K.SCHEDULED, 500_000, 64, 32),
    *(K.CHUNK, 500_000, 512, 1, 4, 600),
    *(K.CHUNK, 700_000, 100, 1, 4, 200),
    *(K.FIRST_TOKEN, 1_000_000),
    *(K.SPENT, 1_000_000, Phase.WAIT_MASK, 150_000),
    *(K.SPENT, 1_000_000, Phase.WAIT_BLOCKS, 250_000),
]
LAST = [*(K.PREEMPTED, 1_200_000, 700), *(K.RESUMED, 1_500_000, 700), *(K.FINISHED, 2_000_000, 10, 4, 3, 1)]


def test_calls_of_tools_are_spans_of_the_part_between_two_turns():
    times = (("received", 0.0), ("sent", 0.1), ("generated", 1.0), ("tools", 4.0), ("sent", 4.2), ("generated", 5.0))
    call = TracedTool("call_1", "mcp", "files__read", "failed", 1.1, 3.9)
    spans = request_spans(replace(traced([*times, ("settled", 5.1)]), tools=[call]))
    place, found = next((n, each) for n, each in enumerate(spans) if each.name == "execute_tool files__read")
    assert (found.begin_s, found.end_s, found.failed) == (1.1, 3.9, True)
    assert found.parent is not None and spans[found.parent].name == "run tools" and found.parent < place
    assert found.attributes["gen_ai.operation.name"] == "execute_tool"
    assert found.attributes["gen_ai.tool.call.id"] == "call_1" and found.attributes["error.type"] == "failed"


def traced(
    gateway: list[tuple[str, float]], engine: Sequence[int] = (), turns: tuple[TracedTurn, ...] = (), status: int = 200
) -> TracedRequest:
    timeline = Timeline()
    timeline.add_engine_events(engine_events(engine), 0.1, 1)
    events = [Event(name, at_s) for name, at_s in gateway] + timeline.events
    return TracedRequest(
        trace=begin("a", None),
        name="POST /v1/chat/completions",
        request_id="req-a",
        method="POST",
        route="/v1/chat/completions",
        status=status,
        wall_clock_offset_s=1.7e9,
        events=events,
        turns=turns,
    )


def tree(spans: list[Span]) -> list[tuple[str, str | None]]:
    return [(span.name, None if span.parent is None else spans[span.parent].name) for span in spans]


def test_a_request_is_a_tree_of_parts_turns_and_phases_of_the_engine() -> None:
    spans = request_spans(traced(GATEWAY, [*FIRST, *LAST], (TracedTurn(id="a", model="tiny"),)))
    root = "POST /v1/chat/completions"
    assert tree(spans) == [
        (root, None),
        ("authenticate", root),
        ("parse", root),
        ("resolve model", root),
        ("stage admission", root),
        ("submit", root),
        ("chat tiny", root),
        ("queue", "chat tiny"),
        ("grammar", "queue"),
        ("fetch", "queue"),
        ("prefill", "chat tiny"),
        ("chunk", "prefill"),
        ("chunk", "prefill"),
        ("decode", "chat tiny"),
        ("preempted", "chat tiny"),
        ("settle", root),
        ("end", root),
    ]
    assert spans[0].kind is SpanKind.SERVER
    by_name = {span.name: span for span in reversed(spans)}
    times = {name: (pytest.approx(each.begin_s), pytest.approx(each.end_s)) for name, each in by_name.items()}
    assert times["queue"] == (0.1, 0.6)
    assert times["grammar"] == (0.15, 0.3)
    assert times["fetch"] == (0.31, 0.4)
    assert times["prefill"] == (0.6, 1.1)
    assert times["chunk"] == (0.6, 0.8)
    assert times["decode"] == (1.1, 2.1)
    assert times["preempted"] == (1.3, 1.6)
    assert by_name["queue"].attributes == {
        "kvarn.waiting": 3,
        "kvarn.wait_mask_s": 0.15,
        "kvarn.wait_blocks_s": 0.25,
    }
    assert by_name["prefill"].attributes == {"kvarn.cached_tokens": 64, "kvarn.loaded_tokens": 32}
    assert by_name["decode"].attributes["kvarn.accepted_tokens"] == 3
    assert [event.name for event in by_name["chat tiny"].events] == ["first_token"]


def test_children_of_the_request_follow_one_another_without_a_gap() -> None:
    spans = request_spans(traced(GATEWAY, FIRST))
    children = [span for span in spans if span.parent == 0]
    assert children[0].begin_s == spans[0].begin_s
    assert children[-1].end_s == spans[0].end_s
    assert all(one.end_s == other.begin_s for one, other in pairwise(children))


def test_each_prompt_of_a_turn_has_its_own_phases() -> None:
    request = traced(GATEWAY, FIRST)
    timeline = Timeline()
    timeline.add_engine_events(engine_events([*FIRST, *LAST]), 0.1, 2)
    both = [*request.events, *timeline.events, *traced([], LAST).events]
    spans = request_spans(replace(request, events=both))
    phases = [span for span in spans if span.name in ("queue", "prefill", "decode")]
    assert [span.name for span in phases] == ["queue", "prefill", "decode"] * 2
    assert [span.end_s for span in phases[:3]] == [span.end_s for span in phases[3:]]


def test_a_turn_that_failed_ends_where_the_next_model_begins() -> None:
    events = [
        ("received", 0.0),
        ("resolved", 0.1),
        ("sent", 0.2),
        ("resolved", 0.5),
        ("sent", 0.6),
        ("failover", 0.7),
        ("generated", 0.9),
        ("ended", 1.0),
    ]
    turns = (TracedTurn(id="a", model="large", outcome="failed"), TracedTurn(id="a.1", model="small"))
    spans = request_spans(traced(events, turns=turns))
    assert [(span.name, span.begin_s, span.end_s, span.failed) for span in spans if span.name.startswith("chat")] == [
        ("chat large", 0.2, 0.5, True),
        ("chat small", 0.6, 0.9, False),
    ]
    assert [(span.name, span.end_s) for span in spans if span.parent == 0 and not span.name.startswith("chat")] == [
        ("resolve model", 0.1),
        ("submit", 0.2),
        ("submit", 0.6),
        ("end", 1.0),
    ]


@pytest.mark.parametrize(
    "gateway", [GATEWAY[:1], GATEWAY[:3], GATEWAY[:6], GATEWAY[:7], [*GATEWAY[:6], ("settled", 1.0), ("ended", 1.1)]]
)
def test_a_request_that_ended_early_has_the_spans_it_had(gateway: list[tuple[str, float]]) -> None:
    spans = request_spans(traced(gateway, FIRST if len(gateway) > 5 else []))
    assert spans[0].end_s == gateway[-1][1]
    assert all(span.parent is not None and span.end_s >= span.begin_s for span in spans[1:])


def test_spans_are_encoded_as_otlp() -> None:
    request = traced(GATEWAY, [*FIRST, *LAST], (TracedTurn(id="a", model="tiny", prompt_tokens=7),), status=503)
    spans = request_spans(request)
    export = parsed(encode([(request, spans)], {"service.name": "kvarn"}))
    (resource,) = export.resource_spans
    assert attributes_of(resource.resource) == {"service.name": "kvarn"}
    (scope,) = resource.scope_spans
    assert [span.name for span in scope.spans] == [span.name for span in spans]
    own, ids = scope.spans[0], [span.span_id for span in scope.spans]
    assert len(set(ids)) == len(ids)
    assert {span.trace_id.hex() for span in scope.spans} == {request.trace.trace_id}
    assert own.span_id.hex() == request.trace.span_id
    assert own.start_time_unix_nano == 1_700_000_000 * 10**9
    assert own.end_time_unix_nano - own.start_time_unix_nano == pytest.approx(2.3e9, abs=1000)
    assert own.status.code == own.status.STATUS_CODE_ERROR
    assert attributes_of(own)["error.type"] == "503"
    parents = [None if span.parent is None else ids[span.parent] for span in spans]
    assert [span.parent_span_id or None for span in scope.spans] == parents
    turn = attributes_of(next(span for span in scope.spans if span.name == "chat tiny"))
    assert turn["gen_ai.usage.input_tokens"] == 7


def test_turns_have_the_attributes_of_vllms_spans_where_asked_for() -> None:
    turn = TracedTurn(id="a", model="tiny", prompt_tokens=7, output_tokens=10)
    spans = request_spans(traced(GATEWAY, [*FIRST, *LAST], (turn,)), vllm=True)
    attributes = next(span for span in spans if span.name == "chat tiny").attributes
    assert attributes["gen_ai.usage.prompt_tokens"] == 7
    assert attributes["gen_ai.usage.completion_tokens"] == 10
    assert attributes["gen_ai.latency.time_in_queue"] == pytest.approx(0.5)
    assert attributes["gen_ai.latency.time_to_first_token"] == pytest.approx(1.1)
    assert attributes["gen_ai.latency.time_in_model_prefill"] == pytest.approx(0.5)
    assert attributes["gen_ai.latency.time_in_model_inference"] == pytest.approx(1.5)
    assert attributes["gen_ai.latency.e2e"] == pytest.approx(2.1)
