"""Responses through the official client: input, chains, tools, what is kept and what is refused."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from asking import prompt_of

ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def test_a_text_is_answered_and_the_answer_has_all_that_was_asked(server, sdk):
    server.chat.cached_tokens = 3
    made = sdk.responses.create(
        model="tiny",
        input="Hej",
        instructions="Be kind.",
        temperature=0.5,
        metadata={"a": "b"},
        user="u",
        max_output_tokens=100,
    )
    assert made.id.startswith("resp_") and made.status == "completed" and made.error is None
    assert made.output_text == "Hello, världen! 🌍"
    assert prompt_of(server) == "<bos><|system|>Be kind.<|user|>Hej<|assistant|>"
    assert (made.instructions, made.temperature, made.metadata, made.user) == ("Be kind.", 0.5, {"a": "b"}, "u")
    assert made.max_output_tokens == 100 and server.chat.submitted[0].sampling.max_tokens == 100
    assert made.usage is not None
    assert made.usage.input_tokens == len(server.chat.submitted[0].prompt_token_ids)
    assert made.usage.output_tokens == 22 and made.usage.total_tokens == made.usage.input_tokens + 22
    assert made.usage.input_tokens_details.cached_tokens == 3
    assert sdk.responses.retrieve(made.id) == made


def test_items_become_the_messages_of_a_chat(server, sdk):
    sdk.responses.create(
        model="tiny",
        input=[
            {"role": "developer", "content": "Short."},
            {"role": "user", "content": [{"type": "input_text", "text": "One"}, {"type": "input_text", "text": "two"}]},
            {"type": "message", "role": "assistant", "content": "Yes"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hidden"}]},
            {"role": "user", "content": "Three"},
        ],
    )
    assert prompt_of(server) == "<bos><|system|>Short.<|user|>One\ntwo<|assistant|>Yes<|user|>Three<|assistant|>"


def test_a_chain_is_rebuilt_whole_without_earlier_instructions(server, answering, sdk):
    answering("one")
    first = sdk.responses.create(model="tiny", input="1", instructions="Earlier.")
    answering("two")
    second = sdk.responses.create(model="tiny", input="2", previous_response_id=first.id)
    answering("three")
    third = sdk.responses.create(model="tiny", input="3", previous_response_id=second.id, instructions="Now.")
    assert third.previous_response_id == second.id and third.output_text == "three"
    assert prompt_of(server) == (
        "<bos><|system|>Now.<|user|>1<|assistant|>one<|user|>2<|assistant|>two<|user|>3<|assistant|>"
    )
    sdk.responses.delete(first.id)
    sdk.responses.create(model="tiny", input="3", previous_response_id=second.id)
    assert prompt_of(server) == "<bos><|user|>2<|assistant|>two<|user|>3<|assistant|>"


def test_a_chain_goes_on_only_from_what_is_there(sdk):
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.responses.create(model="tiny", input="x", previous_response_id="resp_" + "0" * 32)
    assert (missing.value.code, missing.value.param) == ("previous_response_not_found", "previous_response_id")
    unstored = sdk.responses.create(model="tiny", input="x", store=False)
    assert unstored.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(model="tiny", input="x", previous_response_id=unstored.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(unstored.id)


def test_a_function_is_called_and_its_result_goes_back(server, answering, sdk):
    answering("Let me see.\n" + CALL)
    first = sdk.responses.create(model="tiny", input="1 + 2?", tools=[ADD])
    message, call = first.output
    assert message.type == "message" and first.output_text == "Let me see."
    assert call.type == "function_call" and call.name == "add" and call.status == "completed"
    assert json.loads(call.arguments) == {"a": 1, "b": 2}
    answering("3")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    second = sdk.responses.create(model="tiny", input=[result], previous_response_id=first.id, tools=[ADD])
    assert second.output_text == "3"
    assert prompt_of(server).endswith("<|user|>1 + 2?<|assistant|>Let me see.<|tool|>3<|assistant|>")
    # The whole history sent by the client itself says the same.
    again = [{"role": "user", "content": "1 + 2?"}, *[item.to_dict() for item in first.output], result]
    sdk.responses.create(model="tiny", input=again, tools=[ADD], store=False)
    assert prompt_of(server) == prompt_of(server, -2)


def test_a_result_without_its_call_is_refused_by_name(sdk):
    result: Any = {"type": "function_call_output", "call_id": "call_x", "output": "3"}
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(model="tiny", input=[{"role": "user", "content": "?"}, result])
    assert refusal.value.param == "input[1].call_id"


def test_references_stand_for_items_that_are_kept(server, answering, sdk):
    answering("blue")
    first = sdk.responses.create(model="tiny", input="colour?")
    asked = sdk.responses.input_items.list(first.id).data[0]
    items: Any = [
        {"type": "item_reference", "id": asked.id},
        {"id": first.output[0].id},
        {"role": "user", "content": "?"},
    ]
    second = sdk.responses.create(model="tiny", input=items)
    assert prompt_of(server) == "<bos><|user|>colour?<|assistant|>blue<|user|>?<|assistant|>"
    assert [item.id for item in sdk.responses.input_items.list(second.id, order="asc")][:2] == [
        asked.id,
        first.output[0].id,
    ]
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.responses.create(model="tiny", input=[{"type": "item_reference", "id": "msg_nowhere"}])
    assert missing.value.param == "input[0].id"
    # What the model is shown anyway is not shown twice, and is not taken twice.
    sdk.responses.create(model="tiny", input=items[1:], previous_response_id=first.id)
    assert prompt_of(server) == "<bos><|user|>colour?<|assistant|>blue<|user|>?<|assistant|>"
    echoed: Any = first.output[0].to_dict()
    with pytest.raises(openai.BadRequestError) as twice:
        sdk.responses.create(model="tiny", input=[echoed], previous_response_id=first.id)
    assert twice.value.param == "input[0].id"


def test_input_items_are_listed_in_pages(sdk):
    made = sdk.responses.create(model="tiny", input=[{"role": "user", "content": str(i)} for i in range(5)])

    def texts(page: Any) -> list[str]:
        return [item.content[0].text for item in page]

    assert texts(sdk.responses.input_items.list(made.id, limit=2)) == ["4", "3", "2", "1", "0"]
    first = sdk.responses.input_items.list(made.id, limit=2, order="asc")
    assert texts(first.data) == ["0", "1"] and first.has_more
    rest = sdk.responses.input_items.list(made.id, order="asc", after=first.last_id)
    assert texts(rest.data) == ["2", "3", "4"] and not rest.has_more


def test_an_answer_cut_short_is_incomplete_and_says_why(server, answering, sdk):
    answering("x" * 50)
    made = sdk.responses.create(model="tiny", input="x", max_output_tokens=16)
    assert made.status == "incomplete" and made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.output_text == "x" * 16 and made.output[0].to_dict()["status"] == "incomplete"
    assert sdk.responses.retrieve(made.id).status == "incomplete"


def test_an_answer_without_words_is_an_empty_message(answering, sdk):
    answering("")
    made = sdk.responses.create(model="tiny", input="x")
    assert made.status == "completed" and len(made.output) == 1 and made.output_text == ""


def test_log_probabilities_are_given_where_included(answering, sdk):
    answering("hå")
    plain: Any = sdk.responses.create(model="tiny", input="x", top_logprobs=2)
    assert plain.output[0].content[0].logprobs == []
    made: Any = sdk.responses.create(model="tiny", input="x", top_logprobs=2, include=["message.output_text.logprobs"])
    logprobs = made.output[0].content[0].logprobs
    assert bytes(byte for token in logprobs for byte in token.bytes) == "hå".encode()
    assert [len(token.top_logprobs) for token in logprobs] == [2, 2, 2]
    assert sdk.responses.retrieve(made.id) == made


def test_truncation_leaves_out_the_oldest_items_and_no_more(server, sdk):
    items: Any = [{"role": "user", "content": f"{i}" * 100} for i in range(6)]
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(model="tiny", input=items)
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "input")
    made = sdk.responses.create(model="tiny", input=items, truncation="auto", max_output_tokens=100, instructions="I")
    assert made.truncation == "auto"
    kept = "".join(f"<|user|>{str(i) * 100}" for i in (2, 3, 4, 5))
    assert prompt_of(server) == f"<bos><|system|>I{kept}<|assistant|>"
    assert len(sdk.responses.input_items.list(made.id).data) == 6
    with pytest.raises(openai.BadRequestError):  # one item that is too long by itself
        sdk.responses.create(model="tiny", input="x" * 600, truncation="auto")


def test_input_tokens_are_those_of_the_prompt(server, sdk):
    first = sdk.responses.create(model="tiny", input="Hej", tools=[ADD])
    options: Any = {"input": "och då?", "previous_response_id": first.id, "tools": [ADD], "instructions": "Kort."}
    counted = sdk.responses.input_tokens.count(model="tiny", **options)
    made = sdk.responses.create(model="tiny", **options)
    assert made.usage is not None and counted.input_tokens == made.usage.input_tokens
    assert sdk.responses.input_tokens.count(input="x").input_tokens == len("<bos>") - 4 + 3
    with pytest.raises(openai.NotFoundError):
        sdk.responses.input_tokens.count(input="x", conversation="conv_nowhere")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "name": "f", "colour": 1}]}, "tools[0].colour"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"max_output_tokens": 15}, "max_output_tokens"),
        ({"max_output_tokens": 10_000}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"include": ["everything"]}, "include[0]"),
        ({"truncation": "middle"}, "truncation"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"background": True, "store": False}, "store"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": "x", "id": "a b"}]}, "input[0].id"),
        ({"seed": 1}, "seed"),
        ({"n": 2}, "n"),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ],
)
def test_what_is_not_served_is_refused_by_name(client, changes, param):
    answer = client.post("/v1/responses", json={"model": "tiny", "input": "x"} | changes)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_hints_are_taken_and_echoed(client):
    hints = {"prompt_cache_key": "k", "safety_identifier": "s", "max_tool_calls": 3, "service_tier": "auto"}
    extra = {"include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}, "verbosity": "medium"}}
    answer = client.post("/v1/responses", json={"model": "tiny", "input": "x", **hints, **extra}).json()
    assert answer["prompt_cache_key"] == "k" and answer["safety_identifier"] == "s" and answer["max_tool_calls"] == 3
    assert answer["service_tier"] == "default" and answer["text"]["verbosity"] == "medium"


def test_a_text_may_hold_any_character(server, answering, sdk):
    answering("a\0b")
    made = sdk.responses.create(model="tiny", input="x\0y", metadata={"k\0": "v\0"})
    assert sdk.responses.retrieve(made.id).output_text == "a\0b"
    assert sdk.responses.input_items.list(made.id).data[0].to_dict()["content"][0]["text"] == "x\0y"


def test_a_deleted_response_is_gone(sdk):
    made = sdk.responses.create(model="tiny", input="x")
    sdk.responses.delete(made.id)
    for ask in (sdk.responses.retrieve, sdk.responses.delete, sdk.responses.cancel, sdk.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)


def test_ids_that_nothing_can_have_are_unknown(client):
    for name in ("x" * 300, "resp_'", "%F0%9F%8C%8D"):
        assert client.get(f"/v1/responses/{name}").status_code == 404
        assert client.get(f"/v1/conversations/{name}").status_code == 404
    body = {"model": "tiny", "input": "x", "previous_response_id": "resp_\0"}
    assert client.post("/v1/responses", json=body).status_code == 404
    assert client.post("/v1/responses", json={"model": "tiny", "input": "x", "conversation": "\0"}).status_code == 404


def test_calls_are_forced_and_bounded_as_in_a_chat(answering, sdk, server):
    other: Any = {**ADD, "name": "sub"}
    answering(' "add", "arguments": {}}\n</tool_call>')
    made = sdk.responses.create(model="tiny", input="x", tools=[ADD, other], tool_choice="required")
    assert [item.type for item in made.output] == ["function_call"] and made.tool_choice == "required"
    choice: Any = {"type": "function", "name": "add"}
    answering(" {}}\n</tool_call>")
    named: Any = sdk.responses.create(model="tiny", input="x", tools=[ADD, other], tool_choice=choice)
    assert named.output[0].name == "add" and named.tool_choice.name == "add" and named.status == "completed"
    allowed: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "sub"}]}
    answering("Nothing.")
    sdk.responses.create(model="tiny", input="x", tools=[ADD, other], tool_choice=allowed)
    assert '"sub"' in prompt_of(server) and '"add"' not in prompt_of(server)
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(model="tiny", input="x", tools=[other], tool_choice=choice)
    assert "add" in str(refusal.value)


def test_parallel_calls_can_be_switched_off(answering, sdk):
    answering(f"{CALL}\n{CALL}")
    both = sdk.responses.create(model="tiny", input="x", tools=[ADD])
    one = sdk.responses.create(model="tiny", input="x", tools=[ADD], parallel_tool_calls=False)
    assert [len(made.output) for made in (both, one)] == [2, 1] and one.parallel_tool_calls is False


@pytest.mark.parametrize("tier", ["flex", "priority"])
def test_the_tier_reaches_the_engine_and_the_answer(server, sdk, tier):
    made = sdk.responses.create(model="tiny", input="x", service_tier=tier)
    assert made.service_tier == tier
    assert (server.chat.submitted[-1].priority > 0) == (tier == "flex")
