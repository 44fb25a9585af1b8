"""What a chat request says of tools: every form of the choice, and what does not go together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import parse_request

USER = [{"role": "user", "content": "hi"}]
F, G = ({"type": "function", "function": {"name": name}} for name in "fg")


def parse(**fields: Any) -> ChatCompletionRequest:
    return parse_request(ChatCompletionRequest, json.dumps({"model": "m", "messages": USER, **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "names", "forced", "named", "most"),
    [
        ({}, "fg", False, None, None),
        ({"tool_choice": None}, "fg", False, None, None),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, "fg", False, None, 1),
        ({"tool_choice": "required"}, "fg", True, None, None),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "fg", True, "g", 1),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [G]}}},
            "g",
            False,
            None,
            None,
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [F, G]}}},
            "fg",
            True,
            None,
            None,
        ),
    ],
)
def test_the_choice_says_what_may_and_what_must_be_called(
    fields: dict[str, Any], names: str, forced: bool, named: str | None, most: int | None
) -> None:
    use = parse(tools=[F, G], **fields).tool_use
    assert use is not None
    assert (use.names, use.forced, use.named, use.max_calls) == (frozenset(names), forced, named, most)


def test_without_tools_or_with_none_there_is_no_use() -> None:
    assert parse().tool_use is parse(tools=[]).tool_use is parse(tools=[F], tool_choice="none").tool_use is None


def test_functions_are_tools_of_older_clients() -> None:
    functions = [F["function"], G["function"]]
    use = parse(functions=functions).tool_use
    assert use is not None and use.legacy and use.names == {"f", "g"} and use.max_calls == 1 and not use.forced
    forced = parse(functions=functions, function_call={"name": "g"}).tool_use
    assert forced is not None and forced.forced and forced.named == "g"
    assert parse(functions=functions, function_call="none").tool_use is None


def test_only_one_function_leaves_no_choice_of_name() -> None:
    one, two = parse(tools=[F], tool_choice="required").tool_use, parse(tools=[F, G], tool_choice="required").tool_use
    assert one is not None and one.certain_name == "f"
    assert two is not None and two.certain_name is None


def test_the_required_properties_are_those_of_the_schema() -> None:
    parameters = {"type": "object", "required": ["a", 3, "b"]}
    use = parse(tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}]).tool_use
    assert use is not None and use.functions[0].required == ("a", "b")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
        ({"tools": [F], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        (
            {"tools": [F], "tool_choice": {"type": "function", "function": {"name": "f", "x": 1}}},
            "tool_choice.function.x",
        ),
        (
            {
                "tools": [F],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [F, G]}},
            },
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        (
            {"tools": [F], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [F]}}},
            "tool_choice.allowed_tools.mode",
        ),
        ({"tools": [F], "functions": [F["function"]]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"functions": [F["function"]], "function_call": {"name": "g"}}, "function_call.name"),
        ({"tools": [F], "tool_choice": "required", "continue_final_message": True}, "tool_choice"),
        ({"tools": [F], "tool_choice": "required", "add_generation_prompt": False}, "tool_choice"),
        ({"messages": [*USER, {"role": "function", "name": "f", "content": "1"}]}, "messages[1].role"),
        ({"messages": [*USER, {"role": "tool", "tool_call_id": "x", "content": "1"}]}, "messages[1].tool_call_id"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_old_function_messages_become_tool_messages() -> None:
    call = {"name": "f", "arguments": "{}"}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "1"},
    ]
    _, asked, told = parse(messages=messages).plain_messages
    assert asked["tool_calls"][0]["function"] == call and "function_call" not in asked
    assert told["role"] == "tool" and told["tool_call_id"] == asked["tool_calls"][0]["id"]
