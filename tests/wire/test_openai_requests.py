from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from pydantic import BaseModel

from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.common import as_list
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.encoders import EmbeddingRequest
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import parse_request
from kvarn.wire.openai.tokenize import DetokenizeRequest, TokenizeRequest

USER = [{"role": "user", "content": "hi"}]
MINIMAL: dict[type[BaseModel], dict[str, Any]] = {
    ChatCompletionRequest: {"model": "m", "messages": USER},
    CompletionRequest: {"model": "m", "prompt": "hi"},
    EmbeddingRequest: {"model": "m", "input": "hi"},
}


def parse(model: type[BaseModel], /, **fields: Any) -> Any:
    return parse_request(model, json.dumps({**MINIMAL.get(model, {}), **fields}).encode())


def refused(model: type[BaseModel], /, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(model, **fields)
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    return caught.value


def refused_body(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_request(ChatCompletionRequest, body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    return caught.value


@pytest.mark.parametrize("text", ["\ud800", "a\udc00b", "\udc00\ud800"])
def test_a_lone_surrogate_is_refused_wherever_it_stands(text: str) -> None:
    """No database could keep it, and no answer tell it."""
    for fields in ({"metadata": {"k": text}}, {"metadata": {text: "v"}}, {"user": text}, {text: 1}):
        refused_body(json.dumps({"model": "m", "messages": USER, **fields}).encode())
    refused_body(
        json.dumps({"model": "m", "messages": USER, "user": text}, ensure_ascii=False).encode(errors="surrogatepass")
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ChatCompletionRequest, chat_create_params.CompletionCreateParamsBase),
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
        (EmbeddingRequest, embedding_create_params.EmbeddingCreateParams),
    ],
)
def test_every_field_of_the_official_client_is_known(ours: type[BaseModel], theirs: type) -> None:
    known = {*get_type_hints(theirs), *(("stream",) if ours is not EmbeddingRequest else ())}
    assert known - ours.model_fields.keys() == set()


@pytest.mark.parametrize("model", MINIMAL)
def test_null_stands_for_the_default_in_every_field_of_openai_that_may_be_left_out(model: type[BaseModel]) -> None:
    optional = {name: None for name, field in model.model_fields.items() if field.default is None}
    assert parse(model, **optional) == parse(model)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("moderation", {"model": "x"}),
        ("web_search_options", {}),
        ("modalities", ["text", "audio"]),
        ("response_format", {"type": "grammar"}),
        ("service_tier", "gold"),
        ("tool_choice", {"type": "custom", "custom": {"name": "f"}}),
        ("tool_choice", "any"),
    ],
)
def test_what_chat_does_not_serve_is_refused_by_name(field: str, value: object) -> None:
    error = refused(ChatCompletionRequest, **{field: value})
    assert error.param == field
    assert field in error.message
    assert error.code in ("unsupported_parameter", "unsupported_value")


def test_hints_and_values_that_change_nothing_are_taken() -> None:
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_options": {"ttl": "1h"},
        "prompt_cache_retention": "24h",
        "service_tier": "auto",
        "store": False,
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True, "include_obfuscation": False},
    }
    assert parse(ChatCompletionRequest, **harmless).include_usage


def warnings_of(model: type[BaseModel], /, **fields: Any) -> list[str]:
    warnings: list[str] = []
    parse_request(model, json.dumps({**MINIMAL[model], **fields}).encode(), warnings)
    return warnings


@pytest.mark.parametrize("model", MINIMAL)
def test_an_unknown_field_is_ignored_with_a_warning(model: type[BaseModel]) -> None:
    assert warnings_of(model) == []
    assert warnings_of(model, mdel="x") == ["ignored unknown field 'mdel', did you mean 'model'?"]
    assert warnings_of(model, **{"å\r\n": 1}) == ["ignored unknown field '\\xe5\\r\\n'"]
    assert len(warnings_of(model, **{"x" * 10_000: 1})[0]) < 200
    many = warnings_of(model, **{f"field{index:06}": 1 for index in range(50_000)})
    assert many == [*(f"ignored unknown field 'field00000{index}'" for index in range(8)), "ignored more"]
    wide = warnings_of(model, **{f"{index}{'😀' * 60}": 1 for index in range(100)})
    assert len(wide) == 9 and len("; ".join(wide)) < 5000


def test_what_clients_add_to_an_answer_may_be_sent_back() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}
    said = {"role": "assistant", "content": "x", "tool_calls": [call], "provider_specific_fields": {"a": 1}}
    said |= {"refusal": None, "annotations": [], "audio": None}
    (message,) = parse(ChatCompletionRequest, messages=[said]).plain_messages
    assert message["content"] == "x" and "provider_specific_fields" not in message
    assert "index" not in message["tool_calls"][0]


@pytest.mark.parametrize("model", MINIMAL)
def test_fields_of_other_servers_that_would_change_the_answer_are_refused(model: type[BaseModel]) -> None:
    for name in ("ebnf", "grammar", "use_beam_search", "truncate_prompt_tokens"):
        error = refused(model, **{name: "x"})
        assert (error.param, error.code) == (name, "unsupported_parameter")
        parse(model, **{name: None})


def test_wishes_that_have_no_effect_are_taken_with_a_warning() -> None:
    for fields, named in (
        ({"verbosity": "low"}, "verbosity"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "continuous_usage_stats"),
    ):
        (warning,) = warnings_of(ChatCompletionRequest, **fields)
        assert warning.startswith("ignored ") and named in warning


def test_the_model_is_not_shown_that_a_tool_is_strict() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    strict = {"type": "function", "function": {**tool["function"], "strict": True}}
    plain = parse(ChatCompletionRequest, tools=[tool]).active_tools
    assert plain == parse(ChatCompletionRequest, tools=[strict]).active_tools == [tool]
    tokenized = parse_request(TokenizeRequest, json.dumps({"messages": USER, "tools": [strict]}).encode())
    assert tokenized.active_tools == [tool]


def test_the_path_of_a_nested_field_is_named() -> None:
    def param(**fields: Any) -> str | None:
        return refused(ChatCompletionRequest, **fields).param

    tool = {"type": "function", "function": {"name": "f"}}
    assert param(messages=[*USER, {"role": "user", "content": 3}]) == "messages[1].content"
    assert param(messages=[{"role": "user", "content": [{"type": "text", "text": 3}]}]) == "messages[0].content[0].text"
    assert param(messages=[{"role": "user"}]) == "messages[0].content"
    assert param(messages=[{"role": "user", "content": "x", "mood": "y"}]) == "messages[0].mood"
    assert param(messages=[{"role": "narrator", "content": "x"}]) == "messages[0].role"
    assert param(messages=[{"content": "x"}]) == "messages[0].role"
    assert param(messages=["x"]) == "messages[0]"
    assert param(messages=[{"role": "tool", "content": "x"}]) == "messages[0].tool_call_id"
    assert param(tools=[tool, {"type": "custom", "custom": {"name": "x"}}]) == "tools[1].type"
    assert param(tools=[{"type": "function", "function": {"name": "a b"}}]) == "tools[0].function.name"
    assert param(stop=["a", 3]) == "stop[1]"
    assert param(metadata={"k": 3}) == "metadata.k"
    assert param(metadata={str(index): "x" for index in range(17)}) == "metadata"


def test_images_are_refused_with_the_place_of_the_part() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    error = refused(
        ChatCompletionRequest, messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]
    )
    assert (error.param, error.code) == ("messages[0].content[1].type", "unsupported_value")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", None),
        ("model", 3),
        ("messages", None),
        ("messages", []),
        ("messages", "hi"),
        ("temperature", "0.5"),
        ("temperature", True),
        ("n", 1.5),
        ("n", "1"),
        ("max_tokens", True),
        ("stream", 1),
        ("stream", "true"),
        ("seed", 0.5),
        ("logit_bias", [1]),
        ("top_logprobs", "5"),
        ("ignore_eos", 1),
    ],
)
def test_a_wrong_type_is_refused_and_never_converted(field: str, value: object) -> None:
    assert refused(ChatCompletionRequest, **{field: value}).param == field


def test_missing_fields_are_named() -> None:
    for body, param in ((b'{"model": "m"}', "messages"), (b'{"messages": [{"role":"user","content":"x"}]}', "model")):
        with pytest.raises(ApiError) as caught:
            parse_request(ChatCompletionRequest, body)
        assert (caught.value.param, caught.value.code) == (param, "missing_required_parameter")


def test_fields_that_contradict_each_other_are_refused() -> None:
    assert refused(ChatCompletionRequest, stream_options={"include_usage": True}).param == "stream_options"
    assert refused(ChatCompletionRequest, top_logprobs=2).param == "top_logprobs"
    assert refused(ChatCompletionRequest, logprobs=False, top_logprobs=2).param == "top_logprobs"
    assert refused(ChatCompletionRequest, stream=True, prompt_logprobs=1).param == "prompt_logprobs"
    assert refused(ChatCompletionRequest, echo=True).param == "echo"
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert refused(ChatCompletionRequest, **both).param == "continue_final_message"
    assert refused(CompletionRequest, best_of=2).param == "best_of"
    assert refused(CompletionRequest, max_tokens=0).param == "max_tokens"
    assert parse(CompletionRequest, best_of=2, n=2, max_tokens=0, echo=True).n == 2
    assert refused(CompletionRequest, suffix="x").param == "suffix"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "m",}',
        b'{"model": "m"} {}',
        b"[]",
        b'"text"',
        b"null",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"model": "\xff"}',
        b'{"model": "\xed\xa0\x80"}',
        b'{"model": "\\ud800"}',
        b'{"model": "\\ud800x"}',
        b'{"model": "\\udc00"}',
        b"\xff\xfe{\x00}\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' * 65 + b"1" + b"}" * 65,
    ],
)
def test_a_body_that_is_not_plain_json_is_refused(body: bytes) -> None:
    assert len(refused_body(body).message) < 300


def test_deep_nesting_is_refused_wherever_it_is_and_shallow_lists_are_not() -> None:
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    body = json.dumps({**MINIMAL[ChatCompletionRequest], "chat_template_kwargs": {"a": deep}}).encode()
    assert "64 levels" in refused_body(body).message
    assert len(parse(CompletionRequest, prompt=[[1]] * 100).prompt) == 100


def test_numbers_of_any_size_get_an_answer() -> None:
    assert parse(ChatCompletionRequest, seed=2**63).seed == 2**63
    assert parse(ChatCompletionRequest, temperature=1).temperature == 1
    assert refused(ChatCompletionRequest, temperature=10**400).param == "temperature"
    assert refused(ChatCompletionRequest, logit_bias={"1": 10**400}).param == "logit_bias.1"


def test_a_prompt_comes_in_four_forms() -> None:
    for value, inputs in (
        ("a", ["a"]),
        (["a", ""], ["a", ""]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ):
        assert as_list(parse(CompletionRequest, prompt=value).prompt) == inputs
        assert as_list(parse(EmbeddingRequest, input=value).input) == inputs


@pytest.mark.parametrize("value", [None, [], [[]], [1, "a"], ["a", 1], [1, [2]], [True], [1.0], {"a": 1}, [[1], []]])
def test_any_other_form_is_refused_in_one_sentence(value: object) -> None:
    assert refused(CompletionRequest, prompt=value).param == "prompt"
    assert refused(EmbeddingRequest, input=value).param == "input"
    long = refused(CompletionRequest, prompt=[*([1] * 100_000), "a"])
    assert len(long.message) < 300


def test_a_hundred_thousand_wrong_items_make_one_complaint() -> None:
    assert refused(ChatCompletionRequest, stop=[1] * 100_000).param == "stop[0]"
    assert refused(ChatCompletionRequest, messages=[{"role": "user"}] * 15_000).param == "messages[0].content"
    assert len(parse(ChatCompletionRequest, stop=["x"] * 100_000).stop) == 100_000


def test_a_body_of_too_many_objects_is_refused_before_they_are_looked_at() -> None:
    for field in (
        {"messages": [{"no such role": 1}] * 50_000},
        {"tools": [[]] * 50_000},
        {"metadata": {"a": [{}] * 50_000}},
    ):
        assert refused(ChatCompletionRequest, **field).code == "request_too_complex"
    many = [{"role": "user", "content": ""}] * 19_000
    assert len(parse(ChatCompletionRequest, messages=many).messages) == 19_000
    token_ids = list(range(100_000))
    assert len(parse(CompletionRequest, prompt=token_ids).prompt) == 100_000, "numbers are no objects"


def test_messages_and_tools_become_plain_data_for_the_template() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "nullable": None}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    request = parse(ChatCompletionRequest, messages=messages, tools=[tool])
    assert request.plain_messages == messages
    assert request.active_tools == [tool]
    assert parse(ChatCompletionRequest, tools=[tool], tool_choice="none").active_tools is None
    assert parse(ChatCompletionRequest, tools=[]).active_tools is None


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "continue_final_message"])
def test_template_variables_cannot_replace_fields_of_the_request(name: str) -> None:
    kwargs = {"enable_thinking": True, name: []}
    assert refused(ChatCompletionRequest, chat_template_kwargs=kwargs).param == "chat_template_kwargs"
    assert refused(TokenizeRequest, messages=USER, chat_template_kwargs=kwargs).param == "chat_template_kwargs"
    assert parse(ChatCompletionRequest, chat_template_kwargs={"a": [1]}).chat_template_kwargs == {"a": [1]}


def test_tokenize_takes_a_prompt_or_messages_and_not_both() -> None:
    assert parse(TokenizeRequest, prompt="x").prompt == "x"
    assert parse(TokenizeRequest, messages=USER).plain_messages == USER
    assert refused(TokenizeRequest).param == "prompt"
    assert refused(TokenizeRequest, prompt="x", messages=USER).param == "prompt"
    assert parse(DetokenizeRequest, tokens=[1, 2]).tokens == [1, 2]
    assert refused(DetokenizeRequest, tokens=[1, "x"]).param == "tokens[1]"


def test_an_object_of_very_many_wrong_entries_gets_one_short_answer() -> None:
    many = range(20_000)
    error = refused(ChatCompletionRequest, logit_bias={str(i): "x" for i in many})
    assert (error.param, error.code) == ("logit_bias.0", "invalid_value") and len(error.message) < 200
    error = refused(ChatCompletionRequest, metadata={str(i): i for i in many})
    assert error.param == "metadata" and "at most 16" in error.message
    error = refused(ChatCompletionRequest, messages=[{**USER[0], **{f"x{i}": i for i in many}}])
    assert (error.param, error.code) == ("messages[0].x0", "unknown_parameter") and len(error.message) < 200
