"""The stream of a response: which events come, in which order, and what becomes of it when it breaks off."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from background_runs import hold
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.wire.messages import RefusalReason
from raw_http import post_of

ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": %d}}\n</tool_call>'
MESSAGE = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
FUNCTION_CALL = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream; each must carry its name, and their numbers must rise from the first by one."""
    events = []
    for block in text.split("\n\n"):
        if block:
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    first = events[0]["sequence_number"]
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    return events


def stream(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/responses", json={"model": "tiny", "input": "Hej", "stream": True, **body})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8", answer.text
    return events_of(answer.text)


def without_repeats(events: list[dict[str, Any]]) -> list[str]:
    """The kinds of the events; deltas that follow each other count once."""
    kinds = [event["type"] for event in events]
    return [kind for index, kind in enumerate(kinds) if index == 0 or kind != kinds[index - 1]]


def test_a_message_comes_with_all_its_events_in_order(client):
    events = stream(client)
    assert without_repeats(events) == [
        "response.created",
        "response.in_progress",
        *MESSAGE,
        "response.completed",
    ]
    assert events[0]["sequence_number"] == 0 and events[0]["response"]["output"] == []
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "Hello, världen! 🌍" and len(deltas) > 10
    final = events[-1]["response"]
    assert final["status"] == "completed" and final["usage"]["output_tokens"] == 22
    assert final["output"] == [events[-2]["item"]] and events[-2]["item"]["status"] == "completed"
    assert client.get(f"/v1/responses/{final['id']}").json() == final


def test_text_and_calls_are_items_of_their_own(answering, client):
    answering("Both.\n" + CALL % 1 + "\n" + CALL % 2)
    events = stream(client, tools=[ADD])
    assert without_repeats(events)[2:-1] == [*MESSAGE, *FUNCTION_CALL, *FUNCTION_CALL]
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [(event["name"], json.loads(event["arguments"])["a"]) for event in done] == [("add", 1), ("add", 2)]
    indices = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
    assert indices == [0, 1, 2]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message", "function_call", "function_call"]


def test_the_official_client_follows_a_stream(answering, sdk):
    answering("Sure. " + CALL % 7)
    with sdk.responses.stream(model="tiny", input="x", tools=[ADD]) as events:
        kinds = {event.type for event in events}
        final = events.get_final_response()
    assert {"response.output_text.delta", "response.function_call_arguments.delta", "response.completed"} <= kinds
    assert final.output_text == "Sure." and final.output[1].type == "function_call"


def test_a_stream_cut_short_ends_as_incomplete(answering, client):
    answering("x" * 50)
    events = stream(client, max_output_tokens=16)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_log_probabilities_come_with_their_text(answering, client):
    answering("hå!")
    events = stream(client, include=["message.output_text.logprobs"], top_logprobs=1)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [(event["delta"], len(event["logprobs"])) for event in deltas] == [("h", 1), ("å", 2), ("!", 1)]
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert done["logprobs"] == [each for event in deltas for each in event["logprobs"]]


def test_what_the_engine_refuses_before_the_first_token_is_an_ordinary_error(server, client):
    server.chat.refusal = RequestRefusedError(RefusalReason.QUEUE_FULL, "the queue is full", retry_after_s=3)
    for body in ({"stream": True}, {}):
        answer = client.post("/v1/responses", json={"model": "tiny", "input": "x", **body})
        assert answer.status_code == 429 and answer.headers["retry-after"] == "3"
        assert answer.json()["error"]["code"] == "queue_full"


def test_an_engine_lost_in_mid_stream_fails_the_response_and_what_was_written_is_kept(server, client):
    server.chat.lose_after = 5
    events = stream(client)
    assert events[-1]["type"] == "response.failed"
    final = events[-1]["response"]
    assert final["status"] == "failed" and final["error"]["code"] == "server_error"
    assert final["output"][0]["status"] == "incomplete" and final["output"][0]["content"][0]["text"] == "Hello"
    assert client.get(f"/v1/responses/{final['id']}").json() == final
    server.chat.lose_after = 5
    assert client.post("/v1/responses", json={"model": "tiny", "input": "x"}).status_code == 503


def test_a_client_that_leaves_cancels_the_response_and_what_was_written_is_kept(server, client, answering, wait_for):
    answering("abc" * 100)
    server.chat.step_s = 0.01
    raw = server.connect()
    raw.sendall(post_of("/v1/responses", {"model": "tiny", "input": "x", "stream": True}))
    received = b""
    while received.count(b"output_text.delta\ndata") < 5:
        received += raw.recv(65536)
    raw.close()
    response_id = received.partition(b'"id":"')[2].partition(b'"')[0].decode()
    wait_for(lambda: len(server.chat.aborted) == 1, "the engine's request to be aborted")
    wait_for(lambda: client.get(f"/v1/responses/{response_id}").status_code == 200, "the response to be kept")
    kept = client.get(f"/v1/responses/{response_id}").json()
    assert kept["status"] == "cancelled" and kept["output"][0]["status"] == "incomplete"
    assert kept["output"][0]["content"][0]["text"].startswith("abcab") and kept["usage"]["output_tokens"] >= 5
    server.chat.reset()
    more = client.post("/v1/responses", json={"model": "tiny", "input": "y", "previous_response_id": response_id})
    assert more.json()["status"] == "completed"


@pytest.mark.parametrize("background", [False, True])
def test_a_stream_can_be_sent_again_from_any_event(client, answering, background):
    answering("Hmm, två. " + CALL % 1)
    options = {"tools": [ADD], "background": background, "include": ["message.output_text.logprobs"]}
    options |= {"service_tier": "fast"}  # becomes "priority" when it is its turn
    events = stream(client, **options)
    response_id, tier = events[-1]["response"]["id"], events[-1]["response"]["service_tier"]
    for event in events:
        if "response" in event:  # sent again, all name the tier that it was served in
            event["response"]["service_tier"] = tier
    again = client.get(f"/v1/responses/{response_id}", params={"stream": "true"})
    assert events_of(again.text) == events
    for after in (0, 4, len(events) - 2):
        rest = client.get(f"/v1/responses/{response_id}", params={"stream": "true", "starting_after": str(after)})
        assert events_of(rest.text) == events[after + 1 :]
    nothing = client.get(f"/v1/responses/{response_id}?stream=true&starting_after={len(events)}")
    assert nothing.status_code == 200 and nothing.text == ""
    for wrong in ("starting_after=1", "stream=true&starting_after=x", "stream=yes", "include_obfuscation=true"):
        assert client.get(f"/v1/responses/{response_id}?{wrong}").status_code == 400


def test_the_first_event_does_not_wait_for_the_last(server, client):
    go_on, generate = hold(server), server.chat.generate
    gate, server.chat.hold = server.chat.hold, None

    async def pausing(submit: Any, *args: Any) -> AsyncGenerator[Any, None]:
        async for delta in generate(submit, *args):
            yield delta
            await gate.wait()

    server.chat.generate = pausing
    with client.stream("POST", "/v1/responses", json={"model": "tiny", "input": "x", "stream": True}) as answer:
        events = answer.iter_lines()
        assert next(events) == "event: response.created"
        go_on()
        assert "event: response.completed" in list(events)


def test_a_server_that_stops_says_so_in_the_streams_own_words(serve, wait_for):
    received: list[str] = []

    def listen(server: Any) -> None:
        body = {"model": "tiny", "input": "x", "stream": True}
        with server.client() as client, client.stream("POST", "/v1/responses", json=body) as answer:
            received.extend(answer.iter_text())

    with serve(drain_timeout_s=0.2) as server:
        server.chat.step_s, server.chat.answer = 0.05, lambda request, index: [97] * 400
        thread = threading.Thread(target=listen, args=(server,))
        thread.start()
        wait_for(lambda: "output_text.delta" in "".join(received), "the stream to begin")
    thread.join(20)
    last = events_of("".join(received))[-1]
    assert (last["type"], last["code"]) == ("error", "draining") and "shutting down" in last["message"]
