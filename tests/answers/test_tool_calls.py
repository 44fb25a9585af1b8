"""Function calling over HTTP: forced, limited, streamed while it is written, in every format."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import openai
import pytest

from asking import CHAT, HELLO, events_of, prompt_of
from fake_replica import answer_text
from kvarn.text.tool_calls.formats import LLAMA3, MISTRAL_TAGGED

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
ADD: Any = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lund"}}\n</tool_call>'
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


def streamed(sdk: openai.OpenAI, **options: Any) -> tuple[str, list[tuple[str, str]], str | None]:
    """Text, calls and finish reason of a stream."""
    text, reason, calls = "", None, list[tuple[str, str]]()
    for chunk in sdk.chat.completions.create(model="tiny", messages=HELLO, stream=True, **options):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for part in choice.delta.tool_calls or ():
                assert part.function is not None
                if part.id:
                    calls.append((part.function.name or "", ""))
                calls[part.index] = (calls[part.index][0], calls[part.index][1] + (part.function.arguments or ""))
    return text, calls, reason


def whole(sdk: openai.OpenAI, **options: Any) -> tuple[str, list[tuple[str, str]], str | None]:
    choice = sdk.chat.completions.create(model="tiny", messages=HELLO, **options).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return choice.message.content or "", calls, choice.finish_reason


@pytest.mark.parametrize("ask", [whole, streamed])
def test_a_named_function_is_begun_in_the_prompt_and_gone_on_with(server, answering, sdk, ask):
    answering(' {"city": "Lund"}}\n</tool_call> and a lot more')
    seen = ask(sdk, tools=[ADD, WEATHER], tool_choice=NAMED)
    assert seen == ("", [("get_weather", '{"city": "Lund"}')], "stop")
    assert prompt_of(server).endswith('<|assistant|><tool_call>\n{"name": "get_weather", "arguments":')


@pytest.mark.parametrize("ask", [whole, streamed])
def test_some_function_can_be_required(server, answering, sdk, ask):
    answering(f' "get_weather", "arguments": {{"city": "Lund"}}}}\n</tool_call>\n{CALL}')
    calls = [("get_weather", '{"city": "Lund"}')] * 2
    assert ask(sdk, tools=[ADD, WEATHER], tool_choice="required") == ("", calls, "tool_calls")
    assert prompt_of(server).endswith('<tool_call>\n{"name":')
    answering(f' {{"city": "Lund"}}}}\n</tool_call>\n{CALL}')
    assert ask(sdk, tools=[WEATHER], tool_choice="required") == ("", calls, "tool_calls")
    assert prompt_of(server).endswith('"arguments":'), "of one tool the name is certain"


@pytest.mark.parametrize("ask", [whole, streamed])
def test_only_allowed_tools_are_shown_and_called(server, answering, sdk, ask):
    add = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    answering(f"{CALL}{add}")
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{**NAMED}]}}
    text, calls, reason = ask(sdk, tools=[ADD, WEATHER], tool_choice=allowed)
    assert (text, calls, reason) == (add, [("get_weather", '{"city": "Lund"}')], "tool_calls")
    assert "get_weather" in prompt_of(server) and '"add"' not in prompt_of(server)


@pytest.mark.parametrize("ask", [whole, streamed])
def test_without_parallel_calls_the_answer_ends_with_the_first(server, answering, sdk, wait_for, ask):
    answering(f"Well. {CALL} {CALL}" + "x" * 300)
    seen = ask(sdk, tools=[WEATHER], parallel_tool_calls=False)
    assert seen == ("Well.", [("get_weather", '{"city": "Lund"}')], "tool_calls")
    wait_for(lambda: len(server.chat.aborted) == 1, "the engine's request to be aborted")


def test_a_client_that_leaves_with_its_call_has_had_a_whole_answer(server, answering, client, wait_for):
    outcomes: list[str] = []

    class Noting:
        name = "noting"

        async def enter(self, turn: Any) -> None:
            turn.closing.callback(lambda: outcomes.append(str(turn.outcome)))

    stage = Noting()
    server.gateway.steps.stages.append(stage)
    try:
        answering(CALL + "x" * 300)
        body = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "parallel_tool_calls": False, "stream": True}
        with client.stream("POST", CHAT, json=body) as stream:
            for line in stream.iter_lines():
                if '"tool_calls"' in line and '"finish_reason":"tool_calls"' in line:
                    break
        wait_for(lambda: bool(outcomes), "the work to be settled")
    finally:
        server.gateway.steps.stages.remove(stage)
    assert outcomes == ["finished"]


def test_a_choice_that_has_its_call_leaves_the_others_running(answering, sdk):
    text = "No call, but a text that is longer than the call of the other choice, by a good bit."
    answering(f"{CALL} {CALL}", text)
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO, n=2, tools=[WEATHER], parallel_tool_calls=False)
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls", "stop"]
    assert answer.choices[1].message.content == text


def test_arguments_are_sent_while_they_are_written(answering, client):
    answering(CALL)
    body = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "stream": True}
    deltas = [event["choices"][0]["delta"] for event in events_of(client.post(CHAT, json=body))]
    pieces = [part["function"]["arguments"] for delta in deltas for part in delta.get("tool_calls", ())]
    assert "".join(pieces) == '{"city": "Lund"}' and len(pieces) > 10


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LLAMA3, '{"name": "get_weather", "parameters": {"city": "Lund"}}'),
        (LLAMA3, '[get_weather(city="Lund")]'),
        (MISTRAL_TAGGED, '[TOOL_CALLS]get_weather[ARGS]{"city": "Lund"}'),
    ],
)
def test_the_models_own_format_is_read(server, answering, sdk, monkeypatch, kind, text):
    served = server.served["tiny"]
    monkeypatch.setattr(served, "text", replace(served.text, tool_format=kind))
    answering(text)
    for ask in (whole, streamed):
        assert ask(sdk, tools=[WEATHER]) == ("", [("get_weather", '{"city": "Lund"}')], "tool_calls")


def test_special_tokens_that_mark_calls_reach_the_parser(server, sdk, monkeypatch):
    marked = replace(MISTRAL_TAGGED, markers=("<|system|>",))
    served = server.served["tiny"]
    monkeypatch.setattr(served, "text", replace(served.text, tool_format=marked))
    system = 258
    server.chat.answer = lambda request, index: [*b"a", system, *b"b", *answer_text("c")]
    assert whole(sdk, tools=[WEATHER])[0] == "a<|system|>bc"
    assert whole(sdk)[0] == "abc"


def test_what_the_arguments_lack_is_said(answering, client):
    free: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": [WEATHER]}
    forced = {**free, "tool_choice": NAMED}
    for body, answer, warning in (
        (free, CALL.replace("city", "town"), "Tool call 0 (get_weather): its arguments lack 'city'."),
        (free, CALL.replace('"Lund"', "nowhere"), "Tool call 0 (get_weather): its arguments are not valid JSON."),
        (forced, " I will not.", "The model was to call a function and did not."),
    ):
        answering(answer)
        assert client.post(CHAT, json=body).json()["warnings"] == [warning]
        text = client.post(CHAT, json={**body, "stream": True}).text
        assert json.dumps(warning) in text
    answering(' {"city": "Lund"}}')
    assert "warnings" not in client.post(CHAT, json=forced).json()


def test_a_call_that_is_cut_off_is_none(answering, sdk):
    answering(f"Well.\n{CALL}\n{CALL}")
    lund = ("get_weather", '{"city": "Lund"}')
    begun = ("get_weather", '{"city": "L')
    for limit, calls, heard in (
        ({"max_tokens": len('Well.\n<tool_call>\n{"na')}, [], []),
        ({"max_tokens": len("Well.\n" + CALL) - len('und"}}\n</tool_call>')}, [], [begun]),
        ({"max_tokens": len("Well.\n" + CALL) - len("}\n</tool_call>")}, [lund], [lund]),
        ({"max_tokens": len(f"Well.\n{CALL}\n{CALL}") - len('und"}}\n</tool_call>')}, [lund], [lund, begun]),
        ({"stop": ["_weath"]}, [], []),
        ({"stop": ["und"]}, [], [begun]),
    ):
        reason = "length" if "max_tokens" in limit else "stop"
        assert whole(sdk, tools=[WEATHER], **limit) == ("Well.", calls, reason)
        assert streamed(sdk, tools=[WEATHER], **limit) == ("Well.", heard, reason)


def test_a_call_that_is_cut_off_is_said_to_be_none_in_every_dialect(answering, client):
    answering(f"Well.\n{CALL}")
    limit = len("Well.\n" + CALL) - len('und"}}\n</tool_call>')
    body: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": limit}
    chat = client.post(CHAT, json=body | {"tools": [WEATHER]}).json()
    assert chat["warnings"] == ["Tool call 0 (get_weather) was cut off: it is no call."]
    function = {"name": "get_weather", "input_schema": CITY}
    message = client.post("/v1/messages", json=body | {"tools": [function]}).json()
    assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": "Well."}], "max_tokens")
    tool = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False}
    asked = {"model": "tiny", "input": "Hej", "tools": [tool], "max_output_tokens": limit}
    response = client.post("/v1/responses", json=asked).json()
    shown = [(item["type"], item["status"]) for item in response["output"]]
    assert shown == [("message", "completed"), ("function_call", "incomplete")]


def test_a_call_that_the_model_leaves_open_is_none(answering, sdk):
    answering('Well. <tool_call>{"name": "get_weather", "arguments": {"city": "Lu')
    assert whole(sdk, tools=[WEATHER]) == ("Well.", [], "stop")


@pytest.mark.parametrize("choice", ["auto", {"name": "get_weather"}])
def test_functions_of_old_clients_are_tools(server, answering, sdk, choice):
    answering(CALL if choice == "auto" else ' {"city": "Lund"}}')
    options: Any = {"model": "tiny", "functions": [WEATHER["function"]], "function_call": choice}
    answer = sdk.chat.completions.create(messages=HELLO, **options).choices[0]
    assert answer.message.function_call.arguments == '{"city": "Lund"}' and answer.message.tool_calls is None
    assert answer.finish_reason == ("function_call" if choice == "auto" else "stop")
    name = arguments = ""
    for chunk in sdk.chat.completions.create(messages=HELLO, stream=True, **options):
        call = chunk.choices[0].delta.function_call
        name += (call and call.name) or ""
        arguments += (call and call.arguments) or ""
    assert (name, arguments) == ("get_weather", '{"city": "Lund"}')
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": "{}"}},
        {"role": "function", "name": "get_weather", "content": "sunny"},
    ]
    sdk.chat.completions.create(messages=history, **options)
    assert "<|tool|>sunny" in prompt_of(server)


@pytest.mark.parametrize("tokens_per_step", [1, 5, 1000])
def test_old_clients_hear_text_and_call_in_the_order_in_which_they_were_written(
    server, answering, sdk, tokens_per_step
):
    answering("I look it up. " + CALL)
    server.chat.tokens_per_step = tokens_per_step
    heard = []
    options: Any = {"functions": [WEATHER["function"]], "stream": True}
    for chunk in sdk.chat.completions.create(model="tiny", messages=HELLO, **options):
        delta = chunk.choices[0].delta
        heard += ["text"] * bool(delta.content) + ["call"] * (delta.function_call is not None)
    assert heard[0] == "text" and heard[-1] == "call" and sorted(heard, reverse=True) == heard


def test_a_result_must_belong_to_a_call(client):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    assert client.post(CHAT, json={"model": "tiny", "messages": messages}).status_code == 200
    stray = [*messages, {"role": "tool", "tool_call_id": "c2", "content": "4"}]
    error = client.post(CHAT, json={"model": "tiny", "messages": stray}).json()["error"]
    assert error["param"] == "messages[3].tool_call_id" and "'c2'" in error["message"]
