"""Ollama's API through its official client, and as its documentation writes requests: whole, streamed, with tools; what
of its requests is said in other words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest

from asking import HELLO, prompt_of
from kvarn.answers.chat.tool_calls import INVALID
from kvarn.answers.ollama.request import chat_request, raw_completion
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.store.owner import Scopes
from kvarn.wire.messages import RefusalReason
from kvarn.wire.ollama.requests import ChatRequest, GenerateRequest
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import validate
from kvarn.wire.sampling import MAX_INT
from lazy_modules import LazyModule

ollama = LazyModule("ollama")
GREETING = "Hello, världen! 🌍"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": CITY}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lund"}}\n</tool_call>'
COUNTS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count", "eval_count")


@pytest.fixture
def local(server: Any) -> Iterator[ollama.Client]:
    with ollama.Client(server.url, timeout=20) as made:
        yield made


def chat_of(**fields: Any) -> Any:
    """The chat that answers a request with these fields, and its warnings."""
    warnings: list[str] = []
    request = validate(ChatRequest, {"model": "m", "messages": HELLO, **fields}, warnings)
    return chat_request(request, "m"), warnings


def test_a_chat_is_answered_with_its_counts_and_durations(server, local):
    answer = local.chat("tiny:latest", [{"role": "system", "content": "Be brief."}, *HELLO])
    assert (answer.message.role, answer.message.content) == ("assistant", GREETING)
    assert (answer.model, answer.done, answer.done_reason) == ("tiny", True, "stop")
    assert answer.prompt_eval_count == len(server.chat.submitted[0].prompt_token_ids) and answer.eval_count == 22
    assert all(answer[name] > 0 for name in COUNTS)
    parts = answer.load_duration + answer.prompt_eval_duration + answer.eval_duration
    assert parts <= answer.total_duration + 1000
    assert prompt_of(server) == "<bos><|system|>Be brief.<|user|>Hej<|assistant|>"
    assert datetime.fromisoformat(answer.created_at).tzinfo is not None


def test_a_stream_is_lines_of_json_and_the_default(client):
    body = json.dumps({"model": "tiny", "messages": HELLO})
    answer = client.post("/api/chat", content=body, headers={"content-type": "application/x-www-form-urlencoded"})
    assert answer.headers["content-type"] == "application/x-ndjson" and answer.headers["x-request-id"]
    *lines, last = map(json.loads, answer.text.splitlines())
    assert "".join(line["message"]["content"] for line in lines) == GREETING and len(lines) > 10
    assert not any(line["done"] or "eval_count" in line for line in lines)
    assert last["done"] and last["message"] == {"role": "assistant", "content": ""} and last["eval_count"] == 22


def test_a_page_in_a_browser_must_say_that_it_sends_json(client):
    headers = {"origin": "http://localhost:1", "content-type": "text/plain"}
    answer = client.post("/api/chat", content=b"{}", headers=headers)
    assert answer.status_code == 415 and "application/json" in answer.json()["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_whole_and_their_arguments_objects(answering, local, stream):
    answering(f"Let me see.\n{CALL}\n{CALL}")
    options = {"num_predict": 300}
    made: Any = local.chat("tiny", HELLO, tools=[WEATHER], stream=stream, options=options)
    messages = [each.message for each in (made if stream else [made])]
    calls = [call.function for message in messages for call in message.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == [("get_weather", {"city": "Lund"})] * 2
    assert "".join(message.content or "" for message in messages) == "Let me see."


def test_arguments_that_are_no_object_are_marked(answering, client):
    answering('<tool_call>{"name": "get_weather", "arguments": {"city": nowhere}}</tool_call>')
    answer = client.post("/api/chat", json={"model": "tiny", "messages": HELLO, "tools": [WEATHER], "stream": False})
    assert answer.json()["message"]["tool_calls"][0]["function"]["arguments"] == {INVALID: '{"city": nowhere}'}
    assert "not valid JSON" in answer.json()["warnings"][0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_no_call(answering, client, stream):
    answering(f"{CALL}\n{CALL}")
    cut = CALL.index('Lund"') + 2
    body = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "stream": stream}
    for most, calls in ((cut, 0), (len(CALL) + 1 + cut, 1)):
        answer = client.post("/api/chat", json={**body, "options": {"num_predict": most}})
        lines = [json.loads(line) for line in answer.text.splitlines()]
        made = [call["function"]["arguments"] for line in lines for call in line["message"].get("tool_calls", ())]
        assert made == [{"city": "Lund"}] * calls and lines[-1]["done_reason"] == "length"


def test_results_find_their_calls_without_ids():
    calls = [{"function": {"name": name, "arguments": {"n": n}}} for n, name in enumerate(("f", "g", "f"))]
    results = [{"role": "tool", "content": "1", "tool_name": "g"}, *[{"role": "Tool", "content": "2"}] * 2]
    chat, _ = chat_of(messages=[*HELLO, {"role": "assistant", "tool_calls": calls, "images": []}, *results])
    made = chat.plain_messages
    ids = [call["id"] for call in made[1]["tool_calls"]]
    assert len(set(ids)) == 3 and [message["tool_call_id"] for message in made[2:]] == [ids[1], ids[0], ids[2]]
    assert [call["function"]["arguments"] for call in made[1]["tool_calls"]] == ['{"n":0}', '{"n":1}', '{"n":2}']


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"temperature": 0, "top_k": 40, "top_p": 0.9, "min_p": 0.1}, {"temperature": 0, "top_k": 40, "min_p": 0.1}),
        ({"num_predict": 7.0, "seed": 3}, {"max_tokens": 7, "seed": 3}),
        ({"num_predict": -1, "seed": -1}, {"max_tokens": None, "seed": None}),
        ({"num_predict": -2, "stop": []}, {"max_tokens": None, "stop": None}),
        ({"repeat_penalty": 1.1, "presence_penalty": 1}, {"repetition_penalty": 1.1, "presence_penalty": 1}),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, {"repetition_penalty": None}),
        ({"stop": ["a", "b"], "frequency_penalty": 1}, {"stop": ["a", "b"], "frequency_penalty": 1}),
        ({"num_gpu": 1, "num_thread": 8, "use_mmap": True, "numa": False, "num_ctx": 8192, "mirostat": 0}, {}),
    ],
)
def test_options_say_how_tokens_are_drawn(options, fields):
    chat, warnings = chat_of(options=options)
    assert {name: getattr(chat, name) for name in fields} == fields and not warnings


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"temperature": 2.5, "stop": [""]}, {"temperature": 2, "stop": None}),
        ({"temperature": -1, "stop": ["", "a"]}, {"temperature": 0, "stop": ["a"]}),
        ({"top_p": 0}, {"top_p": 1e-6}),
        ({"top_p": 1.5, "top_k": -1}, {"top_p": 1, "top_k": 0}),
        ({"min_p": -0.5}, {"min_p": 0}),
        ({"top_k": 2**62, "num_predict": -(2**40)}, {"top_k": MAX_INT, "max_tokens": None}),
        ({"num_predict": 2**40, "seed": 2**70}, {"max_tokens": MAX_INT, "seed": 2**64 - 1}),
        ({"repeat_penalty": 1000, "presence_penalty": 3}, {"repetition_penalty": 100, "presence_penalty": 2}),
        ({"repeat_penalty": -1, "frequency_penalty": -3}, {"repetition_penalty": None, "frequency_penalty": -2}),
    ],
)
def test_options_beyond_what_can_be_drawn_with_are_brought_to_it(options, fields):
    chat, warnings = chat_of(options=options)
    assert {name: getattr(chat, name) for name in fields} == fields
    assert warnings and all(any(name in warning for name in options) for warning in warnings)


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"options": {"temprature": 1}}, "'temprature', did you mean 'temperature'?"),
        ({"options": {"mirostat": 2}}, "mirostat"),
        ({"options": {"repeat_penalty": 0}}, "repeat_penalty"),
        ({"options": {"repeat_last_n": 128}}, "repeat_last_n"),
        ({"shift": True}, "shift"),
        ({"foo": 1}, "'foo'"),
    ],
)
def test_what_is_ignored_is_told(fields, warning):
    _, warnings = chat_of(**fields)
    assert len(warnings) == 1 and warning in warnings[0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"think": True}, {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        ({"think": False}, {"reasoning_effort": "none", "include_reasoning": False}),
        ({"think": "low"}, {"reasoning_effort": "low", "include_reasoning": True}),
        ({"think": "", "format": "", "tools": [], "stream": None}, {"reasoning_effort": None, "response_format": None}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"top_logprobs": 2}, {"logprobs": None, "top_logprobs": None}),
        ({"messages": [*HELLO, {"role": "assistant", "content": "So"}]}, {"continue_final_message": True}),
    ],
)
def test_fields_are_said_in_the_words_of_chat(fields, expected):
    chat, warnings = chat_of(**fields)
    assert {name: getattr(chat, name) for name in expected} == expected and not warnings


def test_a_format_is_json_or_a_schema():
    assert chat_of(format="json")[0].response_format.type == "json_object"
    assert chat_of(format=CITY)[0].response_format.json_schema.schema_ == CITY
    raw = validate(GenerateRequest, {"model": "m", "prompt": "a", "raw": True, "format": CITY})
    assert raw_completion(raw, "m", 5).structured_outputs.json_ == CITY


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("chat", {"messages": [{**HELLO[0], "images": ["aGVq"]}]}, "'images' is not supported"),
        ("chat", {"options": {"temperature": "hot"}}, "options.temperature"),
        ("chat", {"options": {"num_predict": "x"}}, "options.num_predict"),
        ("chat", {"format": "yaml"}, "'json' or a JSON schema"),
        ("chat", {"format": {"type": "nonsense"}}, "format"),
        ("chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ("chat", {"messages": [{"role": "user", "content": "x" * 600}]}, "exceeds the context length"),
        ("generate", {"images": ["aGVq"]}, "'images' is not supported"),
        ("generate", {"template": "{{ .Prompt }}"}, "'raw'"),
        ("generate", {"suffix": "}"}, "'suffix'"),
        ("generate", {"raw": True, "system": "x"}, "'raw' goes without"),
        ("generate", {"context": [1_000_000]}, "'context'"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_string(client, path, fields, said):
    answer = client.post(f"/api/{path}", json={"model": "tiny", "messages": HELLO, "prompt": "Hej", **fields})
    assert answer.status_code == 400, answer.text
    assert list(answer.json()) == ["error"] and said in answer.json()["error"]


def test_a_model_that_is_not_served_is_a_404(local):
    for ask in (lambda: local.chat("none", HELLO), lambda: local.show("none"), lambda: local.embed("none", "a")):
        with pytest.raises(ollama.ResponseError, match="'none' does not exist") as raised:
            ask()
        assert raised.value.status_code == 404


def test_an_error_in_mid_stream_is_the_last_line(server, client):
    generate = server.chat.generate

    async def fail_later(submit: Any, *args: Any) -> Any:
        number = 0
        async for delta in generate(submit, *args):
            yield delta
            number += 1
            if number == 3:
                raise RequestRefusedError(RefusalReason.QUEUE_TIMEOUT, "too late")

    server.chat.generate = fail_later
    *_, last = client.post("/api/chat", json={"model": "tiny", "messages": HELLO}).text.splitlines()
    assert json.loads(last) == {"error": "too late"}


def test_a_prompt_is_answered_and_gone_on_with(server, local):
    first = local.generate("tiny", "Hej", system="Be brief.")
    assert (first.response, first.done_reason) == (GREETING, "stop")
    assert prompt_of(server) == "<bos><|system|>Be brief.<|user|>Hej<|assistant|>"
    second = local.generate("tiny", "Again", context=first.context)
    assert second.response == GREETING
    before = f"<bos><|system|>Be brief.<|user|>Hej<|assistant|>{GREETING}<eos>"
    assert prompt_of(server) == f"{before}<bos><|user|>Again<|assistant|>"


def test_a_raw_prompt_is_what_the_model_reads(server, local):
    pieces = [*local.generate("tiny", "2 + 2 =", raw=True, stream=True, logprobs=True, top_logprobs=2)]
    assert "".join(piece.response or "" for piece in pieces) == GREETING and pieces[-1].context is None
    assert prompt_of(server).endswith("2 + 2 =") and "assistant" not in prompt_of(server)
    first = pieces[0].logprobs[0]
    assert (first.token, first.logprob) == ("H", -0.25) and len(first.top_logprobs or ()) >= 2


def test_logprobs_stand_beside_their_text(local):
    answer = local.chat("tiny", HELLO, logprobs=True, top_logprobs=2)
    tokens = answer.logprobs or ()
    assert len(tokens) == 21 and tokens[0].token == "H" and len(tokens[0].top_logprobs or ()) == 2


def test_the_oldest_messages_are_left_out_of_a_chat_that_is_too_long(server, client):
    turn = [{"role": "user", "content": "q" * 100}, {"role": "assistant", "content": "a" * 100}]
    call = {"function": {"name": "f", "arguments": {"n": 1}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "call"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "result"},
        *turn * 3,
        {"role": "user", "content": "Well?"},
    ]
    asked = {"model": "tiny", "messages": messages, "stream": False}
    answer = client.post("/api/chat", json=asked)
    assert answer.status_code == 200 and answer.json()["prompt_eval_count"] < 512 * 0.8
    assert "left out 7 of the oldest messages" in answer.headers["x-kvarn-warning"]
    last = f"<|user|>{'q' * 100}<|assistant|>{'a' * 100}<|user|>Well?<|assistant|>"
    assert prompt_of(server) == f"<bos><|system|>Be brief.{last}"
    refused = client.post("/api/chat", json={**asked, "truncate": False})
    assert refused.status_code == 400 and "exceeds the context length" in refused.json()["error"]


def test_an_answer_is_cut_to_what_the_context_has_left(answering, client):
    answering("x" * 600, end=False)
    ask = {"model": "tiny", "prompt": "Hej", "stream": False, "options": {"num_predict": 10_000, "num_ctx": 131_072}}
    for raw in (False, True):
        answer = client.post("/api/generate", json={**ask, "raw": raw})
        assert answer.json()["done_reason"] == "length" and len(answer.json()["response"]) > 400
        assert "lowered 'options.num_predict'" in answer.headers["x-kvarn-warning"]
    assert "num_ctx" in client.post("/api/generate", json=ask).headers["x-kvarn-warning"]


@pytest.mark.parametrize("keep_alive", ["5m", -1, 300, None])
def test_a_request_without_a_prompt_finds_the_model_loaded(local, keep_alive):
    answers = [local.chat("tiny", keep_alive=keep_alive), local.generate("tiny", keep_alive=keep_alive)]
    assert [answer.done_reason for answer in answers] == ["load", "load"]
    assert next(iter(local.generate("tiny", stream=True))).done


@pytest.mark.parametrize("keep_alive", [0, "0", "0s", 0.0])
def test_unloading_is_left_to_the_server(client, keep_alive):
    answer = client.post("/api/generate", json={"model": "tiny", "keep_alive": keep_alive, "stream": False})
    assert answer.json()["done_reason"] == "unload" and "keep_alive" in answer.headers["x-kvarn-warning"]


def test_models_are_listed_and_described(local, client):
    models = {model.model: model for model in local.list().models}
    assert set(models) == {"tiny:latest", "vec:latest"}
    assert len(models["tiny:latest"].digest or "") == 64 and models["tiny:latest"].modified_at is not None
    assert {model.model for model in local.ps().models} == set(models)
    shown = local.show("tiny:latest")
    assert shown.capabilities == ["completion", "tools"] and "<|assistant|>" in (shown.template or "")
    assert shown.modelinfo is not None and shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 512
    assert local.show("vec").capabilities == ["embedding"]
    assert client.post("/api/show", json={"name": "tiny", "verbose": False}).status_code == 200
    for path in ("tags", "ps", "version"):
        assert client.head(f"/api/{path}").status_code == 200
    assert tuple(map(int, client.get("/api/version").json()["version"].split("."))) >= (0, 6, 4)


def test_vectors_have_length_one_and_long_texts_are_cut(server, local):
    answer = local.embed("vec", ["a", "bc"])
    assert len(answer.embeddings) == 2 and answer.prompt_eval_count == 3
    assert all(sum(x * x for x in vector) == pytest.approx(1) for vector in answer.embeddings)
    assert local.embeddings("vec:latest", "a").embedding == pytest.approx(answer.embeddings[0])
    assert local.embed("vec", "x" * 500).prompt_eval_count == 64
    with pytest.raises(ollama.ResponseError, match="exceeds the context length"):
        local.embed("vec", "x" * 500, truncate=False)
    assert local.embed("vec", []).embeddings == []


def test_pulling_what_is_served_succeeds_and_else_says_what_to_do(local, client):
    assert local.pull("tiny:latest").status == "success"
    assert [each.status for each in local.pull("tiny", stream=True)][-1] == "success"
    with pytest.raises(ollama.ResponseError, match="configuration") as raised:
        local.pull("llama3.2")
    assert raised.value.status_code == 404
    nameless = client.post("/api/pull", json={})
    assert (nameless.status_code, nameless.json()["error"]) == (400, "Missing required parameter: model")
    for path in ("pull", "show", "chat"):
        assert "':latest'" in client.post(f"/api/{path}", json={"model": ":latest"}).json()["error"]
    for refused in (
        lambda: local.push("tiny"),
        lambda: local.create("mine", from_="tiny"),
        lambda: local.copy("tiny", "mine"),
        lambda: local.delete("tiny"),
    ):
        with pytest.raises(ollama.ResponseError, match="administrator"):
            refused()


def test_bodies_are_checked_as_everywhere(client):
    for content in (b"", b"{", b"[]"):
        answer = client.post("/api/chat", content=content)
        assert answer.status_code == 400 and isinstance(answer.json()["error"], str)
    assert client.get("/api/none").json()["error"].startswith("Unknown request URL")
    with pytest.raises(ApiError, match="messages"):
        chat_of(messages=[{"role": "wizard", "content": ""}])


def test_what_ollamas_clients_use_is_on_the_ledger(server, wait_for):
    start = int(server.gateway.store.now()) - 10

    def used(client: httpx.Client, kind: str) -> list[tuple[int, int]]:
        answer = client.get(f"/v1/organization/usage/{kind}", params={"start_time": start, "limit": 1})
        return [(each["num_model_requests"], each["input_tokens"]) for each in answer.json()["data"][0]["results"]]

    with server.add_tenant("ollama") as client:
        chat = client.post("/api/chat", json={"model": "tiny", "messages": HELLO, "stream": False}).json()
        client.post("/api/embed", json={"model": "vec", "input": "abc"})
        wait_for(lambda: used(client, "embeddings") == [(1, 3)], "the embedding's usage")
        wait_for(lambda: used(client, "completions") == [(1, chat["prompt_eval_count"])], "the chat's usage")


def test_a_key_that_may_not_chat_hears_so_in_ollamas_shape(server):
    with server.add_tenant("ollama-scoped", scopes=Scopes(endpoints=("/v1/chat",))) as client:
        answer = client.post("/api/chat", json={"model": "tiny", "messages": HELLO})
    assert answer.status_code == 403 and "endpoints:/api/chat" in answer.json()["error"]
