"""Tool calls of the real demo model: free and forced, whole and streamed, in OpenAI's and in Anthropic's words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from lazy_modules import LazyModule

anthropic = LazyModule("anthropic")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SUM = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather of a city", "parameters": CITY},
}
ADD: Any = {"type": "function", "function": {"name": "add", "description": "Add two numbers", "parameters": SUM}}
RAIN: Any = [{"role": "user", "content": "What is the weather in Stockholm?"}]
PLUS: Any = [{"role": "user", "content": "Use the tool to add 17 and 25."}]
GREEDY: dict[str, Any] = {"model": "kvarn-demo", "temperature": 0, "max_tokens": 60}


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def called(sdk: openai.OpenAI, stream: bool, **options: Any) -> tuple[str, Any, str | None]:
    """Name and arguments of the one call, and the finish reason."""
    if not stream:
        choice = sdk.chat.completions.create(**GREEDY, **options).choices[0]
        (call,) = choice.message.tool_calls or ()
        return call.function.name, json.loads(call.function.arguments), choice.finish_reason
    name, arguments, reason = "", "", None
    for chunk in sdk.chat.completions.create(**GREEDY, **options, stream=True):
        reason = chunk.choices[0].finish_reason or reason
        for part in chunk.choices[0].delta.tool_calls or ():
            assert part.index == 0 and part.function is not None
            name += part.function.name or ""
            arguments += part.function.arguments or ""
    return name, json.loads(arguments), reason


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_calls_the_tool_that_the_question_needs(sdk, stream):
    assert called(sdk, stream, messages=RAIN, tools=[WEATHER, ADD]) == (
        "get_weather",
        {"city": "Stockholm"},
        "tool_calls",
    )
    assert called(sdk, stream, messages=PLUS, tools=[WEATHER, ADD]) == ("add", {"a": 17, "b": 25}, "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_can_be_forced(sdk, stream):
    forced = called(sdk, stream, messages=RAIN, tools=[WEATHER, ADD], tool_choice=named("get_weather"))
    assert forced == ("get_weather", {"city": "Stockholm"}, "stop")
    required = called(sdk, stream, messages=PLUS, tools=[WEATHER, ADD], tool_choice="required")
    assert required == ("add", {"a": 17, "b": 25}, "tool_calls")
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("get_weather")]}}
    assert called(sdk, stream, messages=RAIN, tools=[WEATHER, ADD], tool_choice=allowed)[0] == "get_weather"


@pytest.fixture
def claude(server: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_anthropics_client_calls_tools_too(claude):
    tool: Any = {"name": "get_weather", "description": "Get the weather of a city", "input_schema": CITY}
    ask: dict[str, Any] = {"model": "kvarn-demo", "max_tokens": 60, "tools": [tool], "extra_body": {"temperature": 0}}
    whole = claude.messages.create(messages=RAIN, **ask)
    with claude.messages.stream(messages=RAIN, tool_choice={"type": "tool", "name": "get_weather"}, **ask) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        (block,) = message.content
        assert block.type == "tool_use" and block.input == {"city": "Stockholm"} and message.stop_reason == "tool_use"
    use: Any = whole.content[0].model_dump(include={"type", "id", "name", "input"})
    result: Any = {"type": "tool_result", "tool_use_id": use["id"], "content": "rainy, 7 degrees"}
    history: Any = [*RAIN, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    answer = claude.messages.create(messages=history, **ask)
    assert answer.content[0].type == "text" and "rainy, 7 degrees" in answer.content[0].text
    counted = claude.messages.count_tokens(model="kvarn-demo", messages=history, tools=[tool])
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
