"""`/v1/messages` through Anthropic's official client: whole, streamed, with tools; its errors."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest

from asking import HELLO, prompt_of
from kvarn.answers.chat.tool_calls import INVALID
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.store.owner import LimitRule
from kvarn.wire.anthropic.messages import CountTokensRequest, MessagesRequest
from kvarn.wire.messages import RefusalReason
from lazy_modules import LazyModule

anthropic = LazyModule("anthropic")

ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 200, "messages": HELLO}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "get_weather", "description": "The weather", "input_schema": CITY}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Lund"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lund"}}\n</tool_call>'


def test_a_whole_message_has_text_stop_reason_and_usage(server, claude):
    server.chat.cached_tokens = 3
    message = claude.messages.create(system="Be brief.", **ASK)
    assert message.id.startswith("msg_") and message.role == "assistant" and message.model == "tiny"
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello, världen! 🌍"}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    tokens = len(server.chat.submitted[0].prompt_token_ids)
    assert message.usage.input_tokens == tokens - 3 and message.usage.cache_read_input_tokens == 3
    assert message.usage.output_tokens == 22
    assert prompt_of(server) == "<bos><|system|>Be brief.<|user|>Hej<|assistant|>"


def test_a_stream_has_anthropics_events_in_order(client):
    answer = client.post("/v1/messages", json={**ASK, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    events = [entry.split("\n") for entry in answer.text.split("\n\n") if entry]
    kinds = [entry[0].removeprefix("event: ") for entry in events]
    data = [json.loads(entry[1].removeprefix("data: ")) for entry in events]
    assert kinds == [each["type"] for each in data]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert data[0]["message"]["content"] == [] and data[0]["message"]["usage"]["output_tokens"] <= 1
    assert data[-2]["usage"]["output_tokens"] == 22 and data[-2]["delta"]["stop_reason"] == "end_turn"


def test_blocks_stand_in_the_order_in_which_they_were_written(server, answering, claude):
    answering(f"First. {CALL} Then. {CALL} Last.")
    for tokens in (1, 500):
        server.chat.tokens_per_step = tokens
        message = claude.messages.create(tools=[WEATHER], **{**ASK, "max_tokens": 300})
        kinds = [block.text if block.type == "text" else block.type for block in message.content]
        assert kinds == ["First.", "tool_use", "Then.", "tool_use", "Last."]


def test_a_streamed_message_says_what_the_whole_one_says(answering, claude):
    answering(f"Let me see.\n{CALL}\n{CALL}")
    whole = claude.messages.create(tools=[WEATHER], **ASK)
    with claude.messages.stream(tools=[WEATHER], **ASK) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        text, first, second = message.content
        assert text.type == "text" and text.text == "Let me see."
        assert first.type == second.type == "tool_use" and first.id != second.id
        assert first.id.startswith("toolu_") and first.name == "get_weather" and first.input == {"city": "Lund"}
        assert message.stop_reason == "tool_use"
    assert "".join(pieces) == '{"city": "Lund"}' * 2 and len(pieces) > 10
    assert whole.usage == streamed.usage


@pytest.mark.parametrize(
    ("choice", "opening", "answer"),
    [
        ({"type": "tool", "name": "get_weather"}, '"get_weather", "arguments":', ' {"city": "Lund"}}'),
        ({"type": "any"}, '{"name": "get_weather", "arguments":', ' {"city": "Lund"}}'),
        ({"type": "auto", "disable_parallel_tool_use": True}, "<|assistant|>", f"{CALL} {CALL}"),
    ],
)
def test_a_tool_can_be_chosen(server, answering, claude, choice, opening, answer):
    answering(answer)
    message = claude.messages.create(tools=[WEATHER], tool_choice=choice, **ASK)
    assert [getattr(block, "input", None) for block in message.content] == [{"city": "Lund"}]
    assert message.stop_reason == "tool_use" and prompt_of(server).endswith(opening)


def test_tools_are_not_shown_where_none_may_be_used(server, claude):
    claude.messages.create(tools=[WEATHER], tool_choice={"type": "none"}, **ASK)
    assert "get_weather" not in prompt_of(server)


def test_results_calls_and_turns_reach_the_template(server, claude):
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]}
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": [{"type": "text", "text": "So:"}, USE]},
        {"role": "user", "content": [{"type": "text", "text": "Well?"}, result, {**result, "is_error": True}]},
    ]
    claude.messages.create(**{**ASK, "messages": messages}, tools=[WEATHER])
    assert prompt_of(server).endswith(
        "<|user|>a\nb\nc<|assistant|>So:<|tool|>rain<|tool|>Error: rain<|user|>Well?<|assistant|>"
    )


def test_a_last_message_of_the_assistant_is_gone_on_with(server, claude):
    claude.messages.create(**{**ASK, "messages": [*HELLO, {"role": "assistant", "content": "The best is ("}]})
    assert prompt_of(server).endswith("<|assistant|>The best is (")


def test_stop_sequences_and_max_tokens_end_a_message(answering, claude):
    answering("one two STOP three")
    stopped = claude.messages.create(stop_sequences=["STOP", "X"], **ASK)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP")
    assert stopped.content[0].type == "text" and stopped.content[0].text == "one two "
    cut = claude.messages.create(**{**ASK, "max_tokens": 3})
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3


def test_the_engine_gets_the_sampling_asked_for(server, claude):
    extra = {"temperature": 0.5, "top_p": 0.9, "top_k": 7}
    claude.messages.create(metadata={"user_id": "u"}, extra_body=extra, **ASK)
    sampling = server.chat.submitted[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, 7, 200)


def test_input_that_is_no_json_is_handed_over_as_it_is(answering, client):
    answering('<tool_call>{"name": "get_weather", "arguments": {"city": nowhere}}</tool_call>')
    message = client.post("/v1/messages", json={**ASK, "tools": [WEATHER]}).json()
    assert message["content"][0]["input"] == {INVALID: '{"city": nowhere}'}
    assert message["warnings"] == ["Tool call 0 (get_weather): its arguments are not valid JSON."]


def test_tokens_are_counted_as_they_will_be(server, claude):
    asked: Any = {"model": "tiny", "messages": HELLO, "system": [{"type": "text", "text": "Be brief."}]}
    choice: Any = {"type": "any"}
    counted = claude.messages.count_tokens(tools=[WEATHER], tool_choice=choice, **asked)
    message = claude.messages.create(tools=[WEATHER], tool_choice=choice, max_tokens=9, **asked)
    assert counted.input_tokens == message.usage.input_tokens == len(server.chat.submitted[0].prompt_token_ids)


def test_strict_tools_are_kept_to_and_unknown_fields_taken_with_a_warning(server, client):
    answer = client.post("/v1/messages", json={**ASK, "tools": [{**WEATHER, "strict": True}], "colour": "red"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-kvarn-warning"] == "ignored unknown field 'colour'"
    assert server.chat.submitted[-1].grammar is not None


def test_max_tokens_beyond_the_context_is_lowered_with_a_warning(server, client):
    answer = client.post("/v1/messages", json={**ASK, "max_tokens": 100_000})
    assert answer.status_code == 200, answer.text
    submitted = server.chat.submitted[-1]
    room = 512 - len(submitted.prompt_token_ids)
    assert submitted.sampling.max_tokens == room
    assert answer.headers["x-kvarn-warning"] == f"lowered 'max_tokens' to {room}, the context's rest"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"thinking": {"type": "loud"}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nil"}}}}, "output_config.format"),
        ({"mcp_servers": [{"type": "stdio", "url": "x", "name": "x"}]}, "mcp_servers[0].type"),
        ({"container": "c"}, "container"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"stop": ["x"]}, "stop"),
        ({"context_management": {"edits": [{"keep": "all"}]}}, "context_management.edits[0].type"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
            "no tool of type 'web_search_20250305'",
        ),
        (
            {"tools": [{"type": "web_search_20250305"}], "tool_choice": {"type": "tool", "name": "x"}},
            "'tool_choice.name' asks for what is not there: this server runs no tool of type 'web_search_20250305'",
        ),
        ({"tools": [{"type": 5, "name": "x"}]}, "'tools[0].type': Input should be a valid string"),
        ({"tools": [None]}, "'tools[0]': it must be an object"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"messages": [{"role": "assistant", "content": [USE]}]}, "messages[0]"),
    ],
)
def test_what_is_not_served_is_refused_by_name(client, changes, named):
    answer = client.post("/v1/messages", json={**ASK, **changes})
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert named in error["error"]["message"] and error["request_id"] == answer.headers["x-request-id"]


def test_every_field_of_the_official_client_is_known(client):
    from anthropic.types import message_count_tokens_params, message_create_params
    from anthropic.types.beta import message_create_params as beta_message_create_params

    in_headers = {"user_profile_id", "workspace_id"}
    theirs = get_type_hints(message_create_params.MessageCreateParamsBase)
    assert theirs.keys() - MessagesRequest.model_fields.keys() == in_headers
    beta = get_type_hints(beta_message_create_params.MessageCreateParamsBase)
    assert beta.keys() - MessagesRequest.model_fields.keys() == in_headers | {"betas"}
    counted = get_type_hints(message_count_tokens_params.MessageCountTokensParams)
    assert counted.keys() - CountTokensRequest.model_fields.keys() <= in_headers


def test_refusals_reach_the_client_as_its_own_errors(server, claude):
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.messages.create(**{**ASK, "model": "claude"})
    assert unknown.value.body["error"]["type"] == "not_found_error"
    server.chat.refusal = RequestRefusedError(RefusalReason.QUEUE_FULL, "full")
    for stream in (False, True):
        with pytest.raises(anthropic.RateLimitError) as full:
            claude.messages.create(stream=stream, **ASK)
        assert full.value.response.headers["retry-after"]
        assert full.value.body["error"]["type"] == "rate_limit_error"


def test_a_limit_is_told_in_its_words(server):
    rule = LimitRule("limited-claude", requests_per_minute=1)
    with server.add_tenant("limited-claude", limits=(rule,)) as tenant:
        assert tenant.post("/v1/messages", json=ASK).status_code == 200
        refused = tenant.post("/v1/messages", json={**ASK, "stream": True})
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
    assert refused.json()["type"] == "error" and refused.json()["error"]["type"] == "rate_limit_error"


def test_an_error_in_mid_stream_is_an_event(server, claude):
    server.chat.lose_after = 3
    with pytest.raises(anthropic.APIStatusError) as lost:
        for _ in claude.messages.create(stream=True, **ASK):
            pass
    assert lost.value.body["error"]["type"] == "overloaded_error"
