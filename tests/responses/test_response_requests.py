"""What a request for a response may say, and the items it is made of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvarn.responses.request import chat_messages, chat_request, in_response_terms
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import parse_request
from kvarn.wire.openai.responses.items import AnyItem, ItemReference, stored_item
from kvarn.wire.openai.responses.request import ResponseRequest


def parsed(**body: Any) -> ResponseRequest:
    return parse_request(ResponseRequest, msgspec.json.encode({"model": "m", "input": "x", **body}))


def items(*given: dict[str, Any]) -> list[AnyItem]:
    asked = parsed(input=list(given)).input
    assert isinstance(asked, list)
    return asked


def kept(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        stored_item(item, lambda prefix: prefix + "new")
        for item in items(*given)
        if not isinstance(item, ItemReference)
    ]


def test_the_type_may_be_left_out_of_messages_and_references():
    message, reference, null = items({"role": "user", "content": "x"}, {"id": "msg_1"}, {"type": None, "id": "msg_2"})
    assert (message.type, reference.type, null.type) == ("message", "item_reference", "item_reference")


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "input[0].type"),
        ({"type": "computer_call", "id": "x"}, "input[0].type"),
        ({"type": "file_search_call", "id": "x"}, "input[0].queries"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": "x", "colour": 1}, "input[0].colour"),
        ({"type": "function_call", "call_id": "", "name": "f", "arguments": ""}, "input[0].call_id"),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "caller": {"type": "program"}},
            "input[0].caller",
        ),
        ({"type": "function_call_output", "call_id": "c", "output": 1}, "input[0].output"),
        ({"type": "reasoning", "encrypted_content": "x"}, "input[0].encrypted_content"),
        ({"type": "item_reference", "id": "x" * 65}, "input[0].id"),
    ],
)
def test_a_wrong_item_is_refused_by_name(item, param):
    with pytest.raises(ApiError) as refusal:
        items(item)
    assert (refusal.value.status, refusal.value.param) == (400, param)


def test_items_are_kept_in_one_form():
    user, assistant, call, output = kept(
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "input_text", "text": "y"}], "id": "msg_own"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "z"},
    )
    assert user == {
        "id": "msg_new",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "x"}],
    }
    part = {"type": "output_text", "text": "y", "annotations": [], "logprobs": []}
    assert (assistant["id"], assistant["content"]) == ("msg_own", [part])
    assert (call["id"], call["status"], output["id"], output["output"]) == ("fc_new", "completed", "fco_new", "z")


def test_calls_join_the_words_before_them_and_results_follow():
    found = chat_messages(
        "Be kind.",
        kept(
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "Let me see."},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
            {"type": "function_call_output", "call_id": "gone", "output": "3"},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        ),
    )
    assert [message["role"] for message in found] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert [call["id"] for call in found[2]["tool_calls"]] == ["a", "b"] and found[2]["content"] == "Let me see."
    assert [message["content"] for message in found[3:5]] == ["1", "2"]
    assert found[5]["content"] is None and len(found[5]["tool_calls"]) == 1


def test_a_chat_is_asked_for_with_the_same_fields():
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False, "description": "d"}
    asked = parsed(
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        max_output_tokens=20,
        temperature=0,
        top_p=0.5,
        include=["message.output_text.logprobs"],
        top_logprobs=3,
        user="u",
    )
    chat = chat_request(asked, "m", kept({"role": "user", "content": "x"}), seed=7)
    assert (chat.max_completion_tokens, chat.temperature, chat.top_p, chat.seed) == (20, 0, 0.5, 7)
    assert (chat.logprobs, chat.top_logprobs, chat.user, chat.parallel_tool_calls) == (True, 3, "u", False)
    assert chat.tools is not None and chat.tools[0].function.name == "f"
    assert chat.tool_use is not None and chat.tool_use.named == "f"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("messages[3].content", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("response_format", "text.format"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("tools[2].function.strict", "tools[2].strict"),
        ("temperature", "temperature"),
    ],
)
def test_what_chat_refuses_is_told_in_the_words_of_this_endpoint(theirs, ours):
    told = in_response_terms(ApiError(400, f"{theirs!r} is wrong.", param=theirs, code="c", headers={"a": "b"}))
    assert (told.param, told.message) == (ours, f"{ours!r} is wrong.")
    assert (told.status, told.code, told.headers) == (400, "c", {"a": "b"})
