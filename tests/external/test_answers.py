"""Answers of models that another server runs, through each of our APIs."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from asking import events_of
from foreign_server import ForeignServer
from lazy_modules import LazyModule

anthropic = LazyModule("anthropic")

HELLO = [{"role": "user", "content": "hello far away world"}]
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
def sdk(shared_foreign_gateway: Any, foreign: ForeignServer) -> Any:
    with openai.OpenAI(base_url=f"{shared_foreign_gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("there", [True, False], ids=["streamed there", "whole there"])
def test_a_chat_is_answered_with_the_usage_that_the_server_reports(
    sdk: openai.OpenAI, foreign: ForeignServer, there: bool
) -> None:
    foreign.control(stream=there)
    answer = sdk.chat.completions.create(model="far", messages=HELLO, n=2, user="somebody", store=False)  # type: ignore[arg-type]
    assert [choice.message.content for choice in answer.choices] == ["hello far away world "] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 2
    assert answer.model == "far" and answer.usage is not None
    (asked,) = foreign.requests
    prompt = len(json.dumps(asked["messages"]).split())
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 8)
    assert answer.usage.prompt_tokens_details.cached_tokens == prompt // 2  # type: ignore[union-attr]
    assert asked["model"] == "foreign-model" and asked["n"] == 2
    assert not asked.keys() & {"user", "store", "metadata", "service_tier", "priority"}, "who asks stays here"
    assert asked["stream_options"] == {"include_usage": True}


def test_a_chat_is_streamed_as_it_comes(far: Any, foreign: ForeignServer) -> None:
    body = {"model": "afar", "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    answer = far.post("/v1/chat/completions", json=body)
    *chunks, last = events_of(answer)
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert [text for text in texts if text] == ["hello ", "far ", "away ", "world "]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4
    assert {chunk["id"] for chunk in chunks} == {last["id"]} and last["id"].startswith("chatcmpl-")
    assert answer.headers["x-kvarn-replica"] == f"127.0.0.1:{foreign.port}/far"
    assert answer.headers["x-kvarn-resumable"] == "approximate"


def test_without_a_report_tokens_are_estimated(far: Any, foreign: ForeignServer, shared_foreign_gateway: Any) -> None:
    foreign.control(usage=False)
    usage = far.post("/v1/chat/completions", json={"model": "far", "messages": HELLO}).json()["usage"]
    assert usage["prompt_tokens"] == 5 + 4, "20 characters, and a message"
    assert usage["completion_tokens"] == 2 + 1 + 2 + 2, "each chunk's, rounded up"
    assert 'kvarn_external_estimated_total{model="far"}' in far.get("/metrics").text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("there", [True, False], ids=["streamed there", "whole there"])
def test_tool_calls(far: Any, foreign: ForeignServer, stream: bool, there: bool) -> None:
    foreign.control(stream=there)
    body = {"model": "far", "messages": HELLO, "tools": [TOOL], "tool_choice": "required", "stream": stream}
    answer = far.post("/v1/chat/completions", json=body)
    if stream:
        choices = [event["choices"][0] for event in events_of(answer)]
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
        assert (calls[0]["id"], calls[0]["function"]["name"]) == ("call_theirs", "weather")
        arguments = "".join(call["function"].get("arguments", "") for call in calls)
        finish = choices[-1]["finish_reason"]
    else:
        (choice,) = answer.json()["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert (call["id"], call["function"]["name"], choice["message"]["content"]) == ("call_theirs", "weather", None)
        arguments, finish = call["function"]["arguments"], choice["finish_reason"]
    assert json.loads(arguments) == {"city": "Uppsala"} and finish == "tool_calls"
    assert foreign.requests[0]["tools"] == [TOOL] and foreign.requests[0]["tool_choice"] == "required"


def test_functions_are_sent_as_tools_and_answered_as_functions(far: Any, foreign: ForeignServer) -> None:
    body = {"model": "far", "messages": HELLO, "functions": [TOOL["function"]], "function_call": {"name": "weather"}}
    (choice,) = far.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": '{"city": "Uppsala"}'}
    (asked,) = foreign.requests
    assert asked["tools"] == [TOOL] and asked["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert "functions" not in asked


@pytest.mark.parametrize("shown", [True, False])
def test_reasoning(far: Any, foreign: ForeignServer, shown: bool) -> None:
    messages = [{"role": "user", "content": "think twice"}]
    body = {"model": "far", "messages": messages, "include_reasoning": shown}
    (choice,) = far.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["message"]["content"] == "think twice "
    assert choice["message"].get("reasoning_content") == ("let me see " if shown else None)


@pytest.mark.parametrize("stream", [True, False])
def test_completions_of_several_prompts(far: Any, foreign: ForeignServer, stream: bool) -> None:
    body = {"model": "far", "prompt": ["one two", "three four"], "n": 2, "stream": stream, "echo": True}
    answer = far.post("/v1/completions", json={**body, "max_tokens": 9})
    texts = ["", "", "", ""]
    for choice in [c for event in events_of(answer) for c in event["choices"]] if stream else answer.json()["choices"]:
        texts[choice["index"]] += choice["text"]
    assert texts == ["one twoone two "] * 2 + ["three fourthree four "] * 2
    assert sorted(asked["prompt"] for asked in foreign.requests) == ["one two", "three four"]


def test_a_prompt_of_token_ids_goes_as_it_is(far: Any, foreign: ForeignServer) -> None:
    answer = far.post("/v1/completions", json={"model": "far", "prompt": [7, 8], "max_tokens": 4}).json()
    assert answer["choices"][0]["text"] == "7 8 " and foreign.requests[0]["prompt"] == [7, 8]


@pytest.mark.parametrize("stream", [True, False])
def test_messages(shared_foreign_gateway: Any, foreign: ForeignServer, stream: bool) -> None:
    client = anthropic.Anthropic(base_url=shared_foreign_gateway.url, api_key="none", max_retries=0)
    request: Any = {"model": "far", "max_tokens": 50, "messages": HELLO}
    if stream:
        with client.messages.stream(**request) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**request)
    assert message.content[0].text == "hello far away world "  # type: ignore[union-attr]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 4)
    counted = client.messages.count_tokens(model="far", messages=HELLO)  # type: ignore[arg-type]
    assert counted.input_tokens == 9


@pytest.mark.parametrize("stream", [True, False])
def test_responses_and_what_follows_them(sdk: openai.OpenAI, foreign: ForeignServer, stream: bool) -> None:
    first: Any = sdk.responses.create(model="far", input="hello there", stream=stream)
    if stream:
        first = list(first)[-1].response
    assert first.output_text == "hello there " and first.usage.output_tokens == 2
    second = sdk.responses.create(model="far", input="once more", previous_response_id=first.id, truncation="auto")
    assert second.output_text == "once more "
    roles = [message["role"] for message in foreign.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_embeddings_rerank_and_score(sdk: openai.OpenAI, far: Any, foreign: ForeignServer) -> None:
    made = sdk.embeddings.create(model="far-vec", input=["abc", "defgh"])
    assert [each.embedding for each in made.data] == [[3, 1, 0.5, -2], [5, 1, 0.5, -2]]
    assert made.usage.prompt_tokens == 8
    assert len(sdk.embeddings.create(model="far-vec", input="abc", dimensions=2).data[0].embedding) == 2
    ranked = far.post("/v1/rerank", json={"model": "far-vec", "query": "abc", "documents": ["a" * 40, "xyz"]}).json()
    assert [result["index"] for result in ranked["results"]] == [1, 0]
    assert foreign.requests[0]["model"] == "foreign-model" and foreign.requests[0]["input"] == ["abc", "defgh"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"return_token_ids": True}, "return_token_ids"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"n": 1000}, "n"),
        ({"stop": [""]}, "stop"),
    ],
)
def test_what_no_server_can_be_asked_for_is_refused_by_name(
    far: Any, foreign: ForeignServer, fields: dict[str, Any], param: str
) -> None:
    answer = far.post("/v1/chat/completions", json={"model": "far", "messages": HELLO, **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert not foreign.requests


def test_extensions_go_to_servers_that_know_them(far: Any, foreign: ForeignServer) -> None:
    extensions = {"top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}}
    answer = far.post("/v1/chat/completions", json={"model": "far", "messages": HELLO, **extensions, "priority": 1})
    assert answer.status_code == 200
    (asked,) = foreign.requests
    assert {name: asked[name] for name in extensions} == extensions


def test_tenants_have_salts_of_their_own_and_keep_them_secret(
    shared_foreign_gateway: Any, foreign: ForeignServer
) -> None:
    for name in ("salt-a", "salt-b"):
        with shared_foreign_gateway.add_tenant(name, cache_salt=f"secret of {name}") as tenant:
            for salt in ({}, {}, {"cache_salt": "own"}):
                tenant.post("/v1/chat/completions", json={"model": "far", "messages": HELLO, **salt})
    salts = [asked["cache_salt"] for asked in foreign.requests]
    assert salts[0] == salts[1] and salts[3] == salts[4] and len(set(salts)) == 4
    assert not any("secret" in salt for salt in salts)


def test_what_needs_the_tokenizer_says_so(far: Any, foreign: ForeignServer) -> None:
    answer = far.post("/tokenize", json={"model": "far", "prompt": "hello"})
    assert answer.status_code == 400 and "tokenizer" in answer.json()["error"]["message"]


def test_models_and_readiness_show_it(far: Any, foreign: ForeignServer) -> None:
    models = {model["id"]: model for model in far.get("/v1/models").json()["data"]}
    assert models["far"]["ready"] and models["far"]["max_model_len"] == 4096 and models["far"]["kind"] == "generate"
    assert models["far-vec"]["kind"] == "embed"
    assert far.get("/ready").json()["models"]["far"]["ready"]
    assert re.search(r'kvarn_replica_up\{model="far".*\} 1.0', far.get("/metrics").text)
