"""Grammars of calls in each format: what they allow is what the format's parser reads."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher

from kvarn.grammar.asked import Asked, Refusal, Wanted
from kvarn.grammar.build import answer, build
from kvarn.grammar.requests import chat_asked
from kvarn.grammar.structural_tags import from_structural_tag
from kvarn.grammar.text import check, limits
from kvarn.grammar.vocabulary import Vocabulary
from kvarn.text.tool_calls import formats
from kvarn.text.tool_calls.events import ToolCallArguments, ToolCallStart
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from small_vocabulary import MARK

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "get_weather", "parameters": CITY, "strict": True}}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
LUND, WRONG = '{"city": "Lund"}', '{"town": "Lund"}'

KEPT: dict[str, tuple[formats.ToolFormat, str, str]] = {
    "hermes": (formats.HERMES, '<tool_call>\n{"name": "get_weather", "arguments": ARGS}\n</tool_call>', "\n"),
    "llama3": (formats.LLAMA3, '{"name": "get_weather", "parameters": ARGS}', "; "),
    "pythonic": (formats.PYTHONIC, '{"name": "get_weather", "parameters": ARGS}', "; "),
    "mistral": (formats.MISTRAL, '[TOOL_CALLS] [{"name": "get_weather", "arguments": ARGS}]', ""),
    "mistral tagged": (formats.MISTRAL_TAGGED, "[TOOL_CALLS]get_weather[ARGS]ARGS", ""),
    "granite": (formats.GRANITE, '<|tool_call|>[{"name": "get_weather", "arguments": ARGS}]', ""),
    "phi": (formats.PHI_FUNCTOOLS, 'functools[{"name": "get_weather", "arguments": ARGS}]', ""),
    "gpt_oss": (formats.GPT_OSS, "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>ARGS", ""),
    "deepseek": (
        formats.DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        "```json\nARGS\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
    ),
    "deepseek bare": (
        formats.DEEPSEEK_BARE,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>ARGS<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
    ),
}
"""A call in each format, and what stands between two where they follow each other without a list around them."""


def call(name: str, arguments: str) -> str:
    head, _, tail = KEPT[name][1].rpartition("ARGS")
    return head + arguments + tail


def asked(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "Hej"}], **fields}
    )


def chat_grammar(request: ChatCompletionRequest, *more: Any) -> Any:
    wanted = chat_asked(request, *more)
    assert wanted is not None
    return build(wanted)


def accepts(vocabulary: Vocabulary, grammar: str | None, text: str) -> bool:
    assert grammar is not None
    matcher = LLMatcher(vocabulary.library, grammar, log_level=0, limits=limits())
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())  # in this vocabulary bytes are tokens
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("name", KEPT)
def test_a_forced_call_is_one_that_the_parser_reads(vocabulary: Vocabulary, name: str, choice: Any) -> None:
    form = KEPT[name][0]
    request = asked(tools=[WEATHER, NOW], tool_choice=choice)
    use = request.tool_use
    assert use is not None
    opening = form.opening(use.certain_name)
    made = chat_grammar(request, opening, form.syntax, {})
    assert made.warnings == []
    assert call(name, LUND).startswith(opening)
    rest = call(name, LUND)[len(opening) :]
    assert accepts(vocabulary, made.text, rest)
    for wrong in (call(name, WRONG)[len(opening) :], rest + "?", rest.replace("Lund", 'Lund"'), "I will not."):
        assert not accepts(vocabulary, made.text, wrong)
    parser = form.make_parser(use.names, opening=opening, max_calls=use.max_calls)
    events = [*parser.push(rest), *parser.flush()]
    assert [each.name for each in events if isinstance(each, ToolCallStart)] == ["get_weather"]
    assert "".join(each.delta for each in events if isinstance(each, ToolCallArguments)) == LUND


EMPTY = {"type": "object", "properties": {}, "required": [], "$schema": "http://json-schema.org/draft-07/schema#"}


@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize("schema", [{}, None, {"type": "object"}, {"properties": {}}, EMPTY], ids=str)
def test_a_function_whose_schema_tells_of_no_argument_gets_none(vocabulary, schema, strict):
    tool = {"type": "function", "function": {"name": "now", "parameters": schema, "strict": strict}}
    for name in ("hermes", "mistral tagged"):
        form = KEPT[name][0]
        request = asked(tools=[tool], tool_choice="required", parallel_tool_calls=False)
        grammar = chat_grammar(request, form.opening("now"), form.syntax, {}).text
        tail = call(name, "{}").rpartition("{}")[2]
        space = " " if name == "hermes" else ""
        assert accepts(vocabulary, grammar, f"{space}{{}}{tail}")
        assert not accepts(vocabulary, grammar, f'{space}{{"when": 1}}{tail}')


@pytest.mark.parametrize("schema", [{"type": "object", "additionalProperties": True}, {"additionalProperties": {}}])
def test_a_function_that_takes_any_argument_gets_any(vocabulary: Vocabulary, schema: Any) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": schema}}
    form = KEPT["mistral tagged"][0]
    grammar = chat_grammar(asked(tools=[tool], tool_choice="required"), form.opening("now"), form.syntax, {}).text
    assert accepts(vocabulary, grammar, '{"when": 1}') and accepts(vocabulary, grammar, "{}")


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral tagged"])
def test_there_are_several_calls_unless_one_alone_is_asked_for(vocabulary: Vocabulary, name: str) -> None:
    form, _, between = KEPT[name]
    opening = form.opening(None)
    two = (call(name, LUND) + between + call(name, LUND))[len(opening) :]
    for parallel in (None, True, False):
        request = asked(tools=[WEATHER, NOW], tool_choice="required", parallel_tool_calls=parallel)
        grammar = chat_grammar(request, opening, form.syntax, {}).text
        assert accepts(vocabulary, grammar, two) is (parallel is not False)


@pytest.mark.parametrize("name", ["hermes", "mistral", "deepseek"])
def test_strict_functions_are_kept_to_where_the_model_decides(vocabulary: Vocabulary, name: str) -> None:
    grammar = chat_grammar(asked(tools=[WEATHER, NOW]), "", KEPT[name][0].syntax, {}).text
    for text in ("", "Hello {} there", call(name, LUND), "Let me see. " + call(name, LUND)):
        assert accepts(vocabulary, grammar, text), text
    for text in (call(name, WRONG), "x" + call(name, WRONG), call(name, LUND).replace("get_weather", "other")):
        assert not accepts(vocabulary, grammar, text), text
    relaxed = {**WEATHER, "function": {**WEATHER["function"], "strict": False}}
    assert chat_grammar(asked(tools=[relaxed, NOW]), "", KEPT[name][0].syntax, {}).text is None


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral"])
def test_beside_a_format_the_answer_is_of_the_format_or_a_call(vocabulary: Vocabulary, name: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}
    grammar = chat_grammar(asked(tools=[WEATHER, NOW], response_format=form), "", KEPT[name][0].syntax, {}).text
    assert accepts(vocabulary, grammar, LUND) and accepts(vocabulary, grammar, call(name, LUND))
    for text in ("Hello", call(name, WRONG), WRONG):
        assert not accepts(vocabulary, grammar, text)


def test_schemas_that_cannot_be_enforced_are_refused_where_strict_and_else_told() -> None:
    odd: Any = {"name": "f", "parameters": {"type": "object", "not": {}}}
    tool: Any = {"type": "function", "function": odd}
    made = chat_grammar(asked(tools=[NOW, tool], tool_choice="required"), "", formats.HERMES.syntax, {})
    assert made.text is not None and made.warnings == [
        "the schema of 'f' is not enforced: the keyword 'not' cannot be enforced"
    ]
    for fields, param in (
        ({"tools": [NOW, {**tool, "function": {**odd, "strict": True}}]}, "tools[1].function.parameters"),
        ({"functions": [{**odd, "strict": True}]}, "functions[0].parameters"),
    ):
        refusal = chat_grammar(asked(**fields), "", formats.HERMES.syntax, {})
        assert isinstance(refusal, Refusal) and refusal.param == param and "'not'" in refusal.message


@pytest.mark.parametrize(
    "schema",
    [
        {"maximum": 10**400},
        {"minimum": 10**400},
        {"const": 10**400},
        {"enum": [-(10**400)]},
        {"multipleOf": 10**400},
        {"format": "date", "allOf": None},
        {"minProperties": 1, "properties": {"a": {}}, "additionalProperties": False, "allOf": None},
        {"minProperties": 1, "required": [{}]},
        {"properties": {"a": {"required": 1}}},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_schema_that_nobody_expects_is_refused_by_the_worker_and_else_told(schema: Any) -> None:
    wanted = Wanted("response_format", "json_schema", schema, "Invalid schema")
    tag = {"structures": [{"begin": "<a>", "schema": schema, "end": ""}], "triggers": ["<a>"]}
    tagged = Wanted("structured_outputs", "structural_tag", tag, "Invalid tag")
    for asks in (wanted, tagged):
        reply = json.loads(answer(json.dumps(msgspec.to_builtins(Asked(asks, None, {}))).encode()))
        refused = reply["type"] == "refusal" and "cannot be compiled" not in reply["message"]
        assert refused or schema == {"maximum": 10**400}  # drawn in
    tool: Any = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}},
    }
    made = chat_grammar(asked(tools=[tool], tool_choice="required"), "", formats.HERMES.syntax, {})
    assert made.text is not None and (made.warnings or schema == {"maximum": 10**400})


def test_a_fault_of_the_worker_is_a_refusal_and_is_logged(monkeypatch, caplog):
    def broken(_: Asked) -> None:
        raise KeyError("x")

    monkeypatch.setattr("kvarn.grammar.build.build", broken)
    reply = json.loads(answer(json.dumps(msgspec.to_builtins(Asked(None, None, {}))).encode()))
    assert (reply["type"], reply["param"]) == ("refusal", "tools") and "KeyError" in reply["message"]
    assert "compilation failed" in caplog.text


def test_strict_is_ignored_with_a_warning_where_text_does_not_show_that_a_call_begins() -> None:
    for form in (formats.LLAMA3, formats.GLM):
        made = chat_grammar(asked(tools=[WEATHER]), "", form.syntax, {})
        assert made.text is None and made.warnings[0].startswith("ignored 'strict'")


def test_structural_tags_constrain_what_follows_their_triggers(vocabulary: Vocabulary) -> None:
    tag = {"structures": [{"begin": "<f=a>", "schema": CITY, "end": "</f>"}], "triggers": ["<f="]}
    grammar = from_structural_tag(tag, {})
    check(grammar)
    for text in ("", "Hello < there", f"a <f=a>{LUND}</f> b <f=a>{LUND}</f>"):
        assert accepts(vocabulary, grammar, text), text
    for text in (f"<f=b>{LUND}</f>", f"<f=a>{WRONG}</f>", f"<f=a>{LUND}"):
        assert not accepts(vocabulary, grammar, text), text


def test_tokens_that_are_no_text_are_named_by_their_id(vocabulary: Vocabulary) -> None:
    """In text that only looks like one there is no such token, and the token is no part of other text."""
    tag = {"structures": [{"begin": "<|mark|>", "schema": CITY, "end": ""}], "triggers": ["<|mark|>"]}
    matcher = LLMatcher(vocabulary.library, from_structural_tag(tag, {"<|mark|>": MARK}), log_level=0, limits=limits())
    tokens = [*b"Hello", MARK, *LUND.encode()]
    assert matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    matcher.reset()
    assert matcher.try_consume_tokens([MARK, *json.dumps("x").encode()]) == 1


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"structures": [], "triggers": ["a"]},
        {"structures": [{"begin": "b", "schema": True, "end": ""}], "triggers": ["a"]},
    ],
)
def test_broken_structural_tags_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="structur"):
        from_structural_tag(value, {})
