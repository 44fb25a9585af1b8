"""What answers must match, over HTTP: each field becomes a grammar for the engine, or a 400 that names it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fake_replica import answer_text

CUT_OFF = {"max_tokens": 4}
"""The replica answers with a greeting, which matches nothing: what is not finished need not."""
HELLO = [{"role": "user", "content": "Hej"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
LUND = '{"city": "Lund"}'
NOT: dict[str, Any] = {"type": "object", "not": {}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": CITY, "strict": True}}
TAG = {"structures": [{"begin": "<f>", "schema": CITY, "end": "</f>"}], "triggers": ["<f>"]}
FLAT = {"type": "json_schema", "name": "city", "schema": CITY}

EXTENSIONS: list[dict[str, Any]] = [
    {"structured_outputs": {"json": CITY}},
    {"structured_outputs": {"json": '{"type": "integer"}'}},
    {"structured_outputs": {"regex": "[a-z]+"}},
    {"structured_outputs": {"choice": ["yes", "no"], "backend": "auto"}},
    {"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}},
    {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
    {"structured_outputs": {"structural_tag": TAG}},
    {"guided_json": CITY},
    {"guided_regex": "[a-z]+"},
    {"guided_choice": ["yes", "no"]},
    {"guided_grammar": 'start: "yes"'},
]
IN_CHAT: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": FORMAT},
    {"response_format": {"type": "structural_tag", **TAG}},
    {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
    *EXTENSIONS,
]
PLAIN: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"response_format": None, "structured_outputs": None, "guided_json": None},
    {"structured_outputs": {}},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"structural_tag": {}, "grammar": ""}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": CITY}}]},
]


@pytest.mark.parametrize("fields", IN_CHAT)
def test_a_chat_gets_a_grammar(server, client, fields):
    answer = client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, **CUT_OFF, **fields})
    assert answer.status_code == 200, answer.text
    assert server.chat.submitted[-1].grammar is not None
    assert "x-kvarn-warning" not in answer.headers


@pytest.mark.parametrize("fields", PLAIN)
def test_a_chat_without_a_form_gets_none(server, client, fields):
    answer = client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, **CUT_OFF, **fields})
    assert answer.status_code == 200, answer.text
    assert server.chat.submitted[-1].grammar is None


@pytest.mark.parametrize("fields", EXTENSIONS)
def test_each_prompt_of_a_completion_gets_the_grammar(server, client, fields):
    answer = client.post("/v1/completions", json={"model": "tiny", "prompt": ["Hej", "Tack"], **CUT_OFF, **fields})
    assert answer.status_code == 200, answer.text
    first, second = server.chat.submitted[-2:]
    assert first.grammar == second.grammar is not None


@pytest.mark.parametrize("form", [FLAT, {**FLAT, "strict": True}, {"type": "json_object"}])
def test_a_response_gets_the_grammar_of_its_format(server, client, form):
    server.chat.answer = lambda request, index: answer_text(LUND)
    answer = client.post("/v1/responses", json={"model": "tiny", "input": "Hej", "text": {"format": form}})
    assert answer.status_code == 200, answer.text
    assert server.chat.submitted[-1].grammar is not None


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": NOT}}},
        "response_format",
        "'not'",
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "json_schema"),
    (
        {"response_format": {"type": "json_object", "json_schema": {"name": "a"}}},
        "response_format.json_schema",
        "json_schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
        "",
    ),
    ({"response_format": {"type": "structural_tag"}}, "response_format.structures", "structures"),
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": NOT, "strict": True}}]},
        "tools[0].function.parameters",
        "'not'",
    ),
    ({"structured_outputs": {"json": NOT}}, "structured_outputs.json", "'not'"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "JSON"),
    ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json", "schema"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed"),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", "cannot be read"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "structures"),
    ({"structured_outputs": {"backend": "x"}}, "structured_outputs", "regex"),
    ({"structured_outputs": {"json": CITY, "whitespace_pattern": " *"}}, "whitespace_pattern", "whitespace_pattern"),
    ({"structured_outputs": {"json": CITY, "regex": "a"}}, "structured_outputs.regex", "cannot both"),
    ({"guided_regex": "a", "response_format": FORMAT}, "guided_regex", "cannot both"),
    ({"guided_choice": ["a", ""]}, "guided_choice", "empty"),
    ({"guided_json": CITY, "ignore_eos": True}, "ignore_eos", "guided_json"),
    ({"tools": [TOOL], "tool_choice": "required", "ignore_eos": True}, "ignore_eos", "tools"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param", "said"), WRONG)
def test_what_cannot_be_enforced_is_refused_by_name(server, client, fields, param, said, stream):
    before = len(server.chat.submitted)
    body = {"model": "tiny", "messages": HELLO, "stream": stream, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert said in error["message"] and len(error["message"]) < 700
    assert len(server.chat.submitted) == before


def test_a_response_is_refused_in_its_own_words(client):
    form = {"type": "json_schema", "name": "a", "schema": NOT}
    answer = client.post("/v1/responses", json={"model": "tiny", "input": "Hej", "text": {"format": form}})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "text.format"


def test_a_schema_of_a_forced_call_that_is_not_enforced_is_told(server, client):
    tool = {"type": "function", "function": {"name": "f", "parameters": NOT}}
    body = {"model": "tiny", "messages": HELLO, "tools": [tool], "tool_choice": "required"}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200 and "'not' cannot be enforced" in answer.headers["x-kvarn-warning"]
    assert server.chat.submitted[-1].grammar is not None


CALL = f'<tool_call>\n{{"name": "f", "arguments": {LUND}}}\n</tool_call>'
CHECKED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": FORMAT}, LUND),
    ({"structured_outputs": {"json": json.dumps(CITY)}}, LUND),
    ({"tools": [TOOL]}, CALL),
    ({"tools": [TOOL], "response_format": FORMAT}, CALL),
]


@pytest.mark.parametrize(("fields", "right"), CHECKED)
def test_only_valid_answers_end_as_finished(server, client, fields, right):
    """Were the engine ever wrong, the client would not take the answer for one of its schema."""
    body = {"model": "tiny", "messages": HELLO, **fields}
    for text, valid in ((right, True), (right.replace("Lund", 'Lund", "x": "'), False)):
        server.chat.answer = lambda request, index, text=text: answer_text(text)
        answer = client.post("/v1/chat/completions", json=body)
        streamed = client.post("/v1/chat/completions", json={**body, "stream": True})
        if valid:
            assert answer.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n"), answer.text
            continue
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (500, "invalid_structured_output"), error
        assert "invalid_structured_output" in streamed.text and 'finish_reason":"' not in streamed.text
        cut_off = client.post("/v1/chat/completions", json={**body, "max_tokens": 12})
        assert cut_off.status_code == 200 and cut_off.json()["choices"][0]["finish_reason"] == "length"
        stopped = client.post("/v1/chat/completions", json={**body, "stop": "ci"})
        assert stopped.status_code == 200, stopped.text
    counts = {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == "kvarn_structured_answers_total"
    }
    assert counts["valid"] >= 2 and counts["invalid"] >= 2


def test_text_beside_a_format_of_calls_only_is_not_checked(server, client):
    answer = client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, "tools": [TOOL]})
    assert answer.status_code == 200


def test_each_choice_of_a_completion_is_checked(server, client):
    server.chat.answer = lambda request, index: answer_text(LUND if index == 0 else "{}")
    body = {"model": "tiny", "prompt": ["Hej", "Tack"], "structured_outputs": {"json": CITY}}
    assert client.post("/v1/completions", json=body).status_code == 200
    assert client.post("/v1/completions", json={**body, "n": 2}).status_code == 500
