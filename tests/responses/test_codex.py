"""Requests of the shapes that Codex sends at its default settings, written by us, and what each field does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asking import events_of, prompt_of
from kvarn.responses.request import chat_request
from kvarn.responses.tools import CustomInput, arguments_in_pieces
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import validate
from kvarn.wire.openai.responses.items import user_message
from kvarn.wire.openai.responses.request import ResponseRequest

ITEM = user_message("x", "msg_1")
SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Run a command",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
FILES: Any = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "Files",
    "tools": [{"type": "function", "name": "list", "description": "List", "defer_loading": True}],
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin" LF /.+/\n%import common.LF'},
}
SEARCH = {"type": "web_search", "external_web_access": False}
FIRST_TURN: dict[str, Any] = {
    "model": "tiny",
    "instructions": "You are an agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hej"}]},
    ],
    "tools": [{**FILES, "tools": [{**FILES["tools"][0]}]}, SEARCH],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-session",
    "text": {"verbosity": "medium"},
    "client_metadata": {"x-codex-installation-id": "id"},
}


def called(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_the_first_turn_is_answered_and_says_what_it_passes_over(server, client):
    answer = client.post("/v1/responses", json=FIRST_TURN)
    assert events_of(answer)[-1]["type"] == "response.completed"
    assert answer.headers["x-kvarn-ignored"] == "reasoning.summary, tools[1]"
    told = "ignored the tool 'tools[1]', this server runs none of type 'web_search'"
    assert told in answer.headers["x-kvarn-warning"]
    prompt = prompt_of(server)
    assert "mcp__files__list" in prompt and "Files" in prompt and "web_search" not in prompt


def test_tools_that_only_a_server_runs_may_be_all_but_not_be_forced(client):
    body = {"model": "tiny", "input": "Hej", "tools": [SEARCH, {"type": "image_generation"}]}
    assert client.post("/v1/responses", json=body).status_code == 200
    assert client.post("/v1/responses", json={**body, "tool_choice": "required"}).status_code == 400


def test_a_call_into_a_namespace_names_it_and_is_taken_back(server, answering, sdk):
    answering(called("mcp__files__list", {}))
    said: Any = [{"role": "user", "content": "Hej"}]
    response = sdk.responses.create(model="tiny", input=said, tools=[FILES], store=False)
    (call,) = response.output
    assert call.type == "function_call" and (call.namespace, call.name) == ("mcp__files", "list")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"}
    answering("Done.")
    again: Any = [*said, call.to_dict(), result]
    assert sdk.responses.create(model="tiny", input=again, tools=[FILES], store=False).output_text == "Done."
    assert "a.txt" in prompt_of(server)


def test_a_picture_that_a_tool_has_read_does_not_end_a_session(server, client):
    call = {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"}
    parts = [
        {"type": "input_text", "text": "x.png"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
    ]
    result = {"type": "function_call_output", "call_id": "c", "output": parts}
    answer = client.post("/v1/responses", json={"model": "tiny", "input": [call, result]})
    assert answer.status_code == 200 and answer.headers["x-kvarn-ignored"] == "output.input_image"
    assert "x.png\n[image: this model reads text only]" in prompt_of(server)


@pytest.mark.parametrize("tokens_per_step", [1, 500])
def test_a_custom_tools_input_is_plain_text(server, answering, client, tokens_per_step):
    text = '*** Begin\n+ "å" \\ 🌍\t'
    answering(called("apply_patch", {"input": text}))
    server.chat.tokens_per_step = tokens_per_step
    tool = {**PATCH, "format": {"type": "text"}}
    body = {"model": "tiny", "input": "Hej", "tools": [tool], "stream": True}
    events = events_of(client.post("/v1/responses", json=body))
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done["input"] == text and "function_call" not in str(events)
    response = events[-1]["response"]
    (call,) = response["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", text)
    again = events_of(client.get(f"/v1/responses/{response['id']}?stream=true"))
    assert again == events
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Success."}
    answering("Done.")
    going_on = {"model": "tiny", "input": [result], "previous_response_id": response["id"], "tools": [tool]}
    answer = client.post("/v1/responses", json=going_on)
    assert answer.status_code == 200 and "Success." in prompt_of(server)


def test_a_custom_tools_grammar_is_kept_to_where_an_expression_can_say_it(server, client):
    choice = {"type": "custom", "name": "apply_patch"}
    body = {"model": "tiny", "input": "Hej", "tools": [PATCH], "tool_choice": choice, "store": False}
    answer = client.post("/v1/responses", json=body)
    assert answer.status_code == 200 and "x-kvarn-warning" not in answer.headers
    assert r"\\*\\*\\* Begin" in server.chat.submitted[-1].grammar.text
    digits = {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"}
    assert client.post("/v1/responses", json=body | {"tools": [PATCH | {"format": digits}]}).status_code == 200
    assert "[0-9]{3}" in server.chat.submitted[-1].grammar.text
    nested = {"type": "grammar", "syntax": "lark", "definition": 'start: "(" start ")" | "x"'}
    answer = client.post("/v1/responses", json=body | {"tools": [PATCH | {"format": nested}]})
    assert answer.status_code == 200
    told = "the grammar of 'apply_patch' is not enforced: the rule 'start' holds itself"
    assert told in answer.headers["x-kvarn-warning"]
    for wrong in ({"type": "grammar"}, {"type": "grammar", "syntax": "regex", "definition": "("}):
        answer = client.post("/v1/responses", json=body | {"tools": [PATCH | {"format": wrong}]})
        assert answer.status_code == 400 and answer.json()["error"]["param"].startswith("tools"), answer.text


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (['{"input"', ': "a', "\\", "n\\u00", 'e5"}'], "a\nå"),
        (['{"input": "\\ud83c', '\\udf0d"}'], "🌍"),
        (['{"input": ""}'], ""),
        (['{"patch": "x"}'], "x"),
        (['"x"'], "x"),
        (["no JSON"], "no JSON"),
        ([], ""),
    ],
)
def test_the_input_is_read_out_of_its_arguments_however_they_are_cut(pieces, text):
    reader = CustomInput()
    assert "".join(map(reader.take, pieces)) + reader.rest() == text


def test_pieces_of_an_input_can_be_written_again():
    reader, pieces = CustomInput(), ['say "', "hej\n", "🌍"]
    assert [reader.take(each) for each in arguments_in_pieces(pieces)] == pieces


@pytest.mark.parametrize(
    "empty",
    [
        *({name: []} for name in ("tools", "include", "context_management")),
        *({name: {}} for name in ("reasoning", "metadata", "prompt", "moderation", "stream_options", "text")),
        {"text": {"format": {}}, "tool_choice": "", "instructions": "", "previous_response_id": "", "service_tier": ""},
        {"input": [{"role": "user", "content": "a", "id": ""}, {"role": "assistant", "content": []}]},
        {"tools": [{"type": "custom", "name": "f", "format": {}}]},
    ],
    ids=str,
)
def test_what_is_empty_asks_for_nothing(client, empty):
    answer = client.post("/v1/responses", json={"model": "tiny", "input": "Hej", **empty})
    assert answer.status_code == 200, answer.text
    assert "x-kvarn-warning" not in answer.headers


def test_a_conversation_can_be_shortened(server, answering, sdk, client):
    first = sdk.responses.create(model="tiny", input="First question", tools=[SHELL])
    answering("They asked a question.")
    said: Any = [{"role": "user", "content": "Second question"}]
    short = sdk.responses.compact(model="tiny", input=said, previous_response_id=first.id, instructions="Be kind.")
    assert short.object == "response.compaction" and short.usage.output_tokens > 0
    *users, compaction = short.output
    assert [user.content[0].text for user in users] == ["First question", "Second question"]
    assert compaction.type == "compaction"
    answering("Done.")
    going_on: Any = [*(item.to_dict() for item in short.output), {"role": "user", "content": "Third"}]
    response = sdk.responses.create(model="tiny", input=going_on)
    assert response.output_text == "Done."
    assert "They asked a question." in prompt_of(server)
    assert sdk.responses.create(model="tiny", input="Go on", previous_response_id=response.id).status == "completed"
    foreign = {"model": "tiny", "input": [{"type": "compaction", "encrypted_content": "gAAAA"}]}
    answer = client.post("/v1/responses", json=foreign)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "input[0].encrypted_content"


def test_a_conversation_that_is_too_long_is_shortened_from_its_end(server, client):
    said = [{"role": "user", "content": f"{number} " * 60} for number in range(10)]
    answer = client.post("/v1/responses/compact", json={"model": "tiny", "input": said, "tools": [SHELL, SEARCH]})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["output"]) == 11 and "exec_command" not in prompt_of(server)


def test_a_summary_that_is_empty_or_cut_off_is_an_error(answering, server, client):
    body = {"model": "tiny", "input": "A question"}
    answering("")
    empty = client.post("/v1/responses/compact", json=body)
    assert empty.status_code == 500 and empty.json()["error"]["code"] == "summary_incomplete"
    answering("word " * 500)
    cut = client.post("/v1/responses/compact", json=body)
    assert cut.status_code == 500 and "'length'" in cut.json()["error"]["message"]
    nothing = client.post("/v1/responses/compact", json={**body, "input": []})
    assert nothing.status_code == 400 and nothing.json()["error"]["param"] == "input"


FUNCTION = {"type": "function", "name": "f"}


def space(name: str, tool: str) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": [{"type": "function", "name": tool}]}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [space("a", "b__c"), space("a__b", "c")]}, "tools[1]", "'b__c' of the namespace 'a'"),
        ({"tools": [{**FUNCTION, "name": "a__b"}, space("a", "b")]}, "tools[1]", "'b' of the namespace 'a'"),
        ({"tools": [FUNCTION, {"type": "custom", "name": "f"}]}, "tools[1]", "the custom tool 'f'"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "custom", "name": "nope"}}, "tool_choice.name", "'nope'"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "tool_choice", "no tool is offered"),
        ({"tools": [5]}, "tools[0]", "must be an object"),
        ({"tools": [{"type": 5}]}, "tools[0].type", "valid string"),
        ({"input": [{"type": "compaction", "encrypted_content": "kvarn-summary-1.é"}]}, None, "has not made it"),
        *(
            (
                {
                    "tools": [FUNCTION, SEARCH],
                    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": allowed},
                },
                *expected,
            )
            for allowed, expected in (
                ([SEARCH], ("tool_choice.tools", "none of the tools that are offered")),
                ([SEARCH, {**FUNCTION, "name": "g"}], ("tool_choice.tools[1].name", "'g'")),
                ([{"type": "function"}], ("tool_choice.tools[0].name", "is missing")),
            )
        ),
    ],
)
def test_tools_that_cannot_be_told_apart_or_chosen_are_refused(fields, param, message):
    with pytest.raises(ApiError) as raised:
        chat_request(validate(ResponseRequest, {"model": "m", "input": "x", **fields}), "m", [ITEM])
    assert raised.value.status == 400 and message in raised.value.message
    assert param in (None, raised.value.param)


def test_a_tool_that_is_offered_twice_is_one_tool():
    request = validate(ResponseRequest, {"model": "m", "input": "x", "tools": [FUNCTION, FUNCTION]})
    assert chat_request(request, "m", [ITEM]).tools


def test_the_beginning_of_an_input_is_looked_for_in_what_comes_first():
    reader, text = CustomInput(), ""
    for piece in (" " * 60, " " * 60, '{"input": "a', 'b"}'):
        text += reader.take(piece)
    assert (text, reader.rest()) == ("", "ab")
    assert CustomInput().take(" " * 100 + '{"input": "a') == "a"
