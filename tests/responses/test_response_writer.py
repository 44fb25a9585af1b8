"""A stream is sent again exactly as it was sent the first time."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvarn.answers.choice import ChoiceDelta
from kvarn.responses.replay import replay, unwritten
from kvarn.responses.writer import ResponseWriter, item_id, response_of_item
from kvarn.text.reasoning.splitter import Reasoning
from kvarn.wire.openai.chat.answer import FunctionCallDelta, TokenLogprobs, ToolCallDelta
from kvarn.wire.openai.responses.answer import Response, ResponseError, StreamEvent, response_usage
from kvarn.wire.openai.usage import usage

RESPONSE_ID = "resp_" + "ab" * 16


def call(index: int, arguments: list[str]) -> list[ToolCallDelta]:
    start = FunctionCallDelta(name=f"f{index}", arguments="")
    opening = ToolCallDelta(index=index, id=f"call_{index}", type="function", function=start)
    return [opening, *[ToolCallDelta(index=index, function=FunctionCallDelta(arguments=each)) for each in arguments]]


def logprobs(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(token="t", logprob=-0.5, bytes=[116], top_logprobs=[]) for _ in range(count)]


NOTE = {"type": "file_citation", "index": 0, "file_id": "file-1", "filename": "a.md"}
hosted = st.sampled_from(
    [
        ({"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "output": None}, {"output": "x"}),
        ({"type": "file_search_call", "queries": ["q"], "results": None}, {"results": []}),
        ({"type": "web_search_call", "action": {"type": "search", "query": "q"}}, {}),
        ({"type": "code_interpreter_call", "code": "1", "container_id": "c", "outputs": None}, {"outputs": []}),
    ]
)
listed = {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "n", "input_schema": {}}], "error": None}
statuses = st.sampled_from(["completed", "failed", None])  # None: stopped

pieces = st.lists(
    st.one_of(
        st.builds(lambda item, status: ("hosted", (item, status), 0), hosted, statuses),
        st.just(("list", listed, 0)),
        st.just(("note", NOTE, 0)),
        st.builds(lambda text, count: ("text", text, count), st.text(max_size=5), st.integers(0, 3)),
        st.just(("refusal", "No.", 0)),
        st.builds(lambda text, count: ("reasoning", text, count), st.text(min_size=1, max_size=5), st.integers(0, 3)),
        st.builds(lambda parts: ("call", parts, 0), st.lists(st.text(min_size=1, max_size=4), max_size=3)),
    ),
    max_size=8,
)
ends = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "cancelled", "failed"])


def written(
    script: list[tuple[str, object, int]], end: str, background: bool
) -> tuple[ResponseWriter, list[StreamEvent]]:
    """Write a response as a run does."""
    response = unwritten(
        Response(id=RESPONSE_ID, created_at=1, model="asked", service_tier="default", background=background)
    )
    writer = ResponseWriter(response, first_item=2)
    events = writer.queue() if background else []
    events += writer.begin()
    calls = 0
    for kind, what, count in script:
        if kind == "text":
            events += writer.take(ChoiceDelta(0, str(what), logprobs=logprobs(count)))
        elif kind == "reasoning":
            thought = ChoiceDelta(0, parts=[Reasoning(str(what))], reasoning_tokens=count, logprobs=logprobs(count))
            events += writer.take(thought)
        elif kind == "hosted":
            (begun, ended), status = what  # type: ignore[misc]
            events += writer.begin_call(begun | {"status": "in_progress"})
            if status is not None:
                events += writer.end_call(ended | {"status": status, "model_view": {"name": "x"}})
        elif kind == "list":
            events += writer.add_hosted(dict(what))  # type: ignore[call-overload]
        elif kind == "note":
            events += writer.take(ChoiceDelta(0, annotations=[dict(what)]))  # type: ignore[call-overload]
        elif kind == "refusal":
            events += writer.refuse(str(what))
        else:
            assert isinstance(what, list)
            events += writer.take(ChoiceDelta(0, parts=list(call(calls, what))))
            calls += 1
    used = response_usage(usage(3, 4))
    if end == "cancelled":
        events += writer.break_off("cancelled", used)
    elif end == "failed":
        events += writer.break_off("failed", used, ResponseError(code="server_error", message="lost"))
    else:
        events += writer.close(end)
        writer.finish(end, used, now=5)
    return writer, [*events, writer.last()]


@given(pieces, ends, st.booleans())
def test_what_is_stored_gives_the_same_events_again(script, end, background):
    writer, events = written(script, end, background)
    stored = msgspec.json.encode((writer.response, writer.cuts))
    response, cuts = msgspec.json.decode(stored, type=tuple[Response, list[list[list[int]]]])
    again = list(replay(response, 2, cuts))
    assert msgspec.to_builtins(again) == msgspec.to_builtins(events)
    assert [event.sequence_number for event in events] == list(range(len(events)))


@given(pieces, ends)
def test_the_output_is_what_the_deltas_said(script, end):
    writer, events = written(script, end, background=False)
    for index, item in enumerate(writer.response.output):
        if "content" not in item and item["type"] != "function_call":
            continue
        told = "".join(str(event.delta or "") for event in events if event.output_index == index)
        part = item["content"][0] if "content" in item else {"arguments": item["arguments"]}
        assert told == (part.get("text") or part.get("refusal") or part.get("arguments") or "")
    output = writer.response.output
    assert len({item["id"] for item in output}) == len(output)
    if end == "stop" and output and "content" in output[-1]:
        assert output[-1]["status"] == "completed"


def test_a_response_that_never_began_ends_all_the_same():
    response = Response(
        id=RESPONSE_ID, created_at=1, model="asked", service_tier="default", status="queued", background=True
    )
    writer = ResponseWriter(response, 0)
    events = [*writer.queue(), *writer.break_off("failed", error=ResponseError(code="server_error", message="no"))]
    events.append(writer.last())
    assert [event.type for event in events] == [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.failed",
    ]
    assert list(replay(writer.response, 0, writer.cuts)) == events


def test_the_id_of_an_item_tells_its_response():
    assert response_of_item(item_id("msg_", RESPONSE_ID, 17)) == RESPONSE_ID
    assert response_of_item(item_id("fc_", RESPONSE_ID, 70_000)) == RESPONSE_ID
    assert response_of_item("msg_" + "ab" * 16) is None and response_of_item("") is None
