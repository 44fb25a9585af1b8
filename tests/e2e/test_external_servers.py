"""Really running foreign servers behind a gateway: another Kvarn, `transformers serve`, llama.cpp where installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from benchmarks.server import free_port

import kvarn
from asking import events_of
from profiles import thorough

QUESTION = [{"role": "user", "content": "What is Kvarn?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ASKED: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 24},
    {"temperature": 1, "seed": 7, "max_tokens": 24, "n": 2},
    {"temperature": 0, "max_tokens": 24, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "max_tokens": 64, "tools": [TOOL], "tool_choice": "required"},
    {
        "temperature": 0,
        "max_tokens": 40,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
    {"temperature": 0, "max_tokens": 24, "stop": ["a"], "top_k": 5, "min_tokens": 1},
]


@pytest.fixture(scope="module")
def both(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """A Kvarn, and one in front of it that runs no engine, with two gateway processes."""
    inner_home, outer_home = tmp_path_factory.mktemp("inner"), tmp_path_factory.mktemp("outer")
    with serving(inner_home, {"gateway": {"port": 0}, "data_dir": str(inner_home / "data")}) as inner:
        external = {"base_url": f"{inner.url}/v1", "api": "kvarn", "model": "kvarn-demo", "probe_interval_s": 0.2}
        configuration = {
            "gateway": {"port": 0, "api_server_count": 2},
            "data_dir": str(outer_home / "data"),
            "models": [
                {"name": "far", "external": external},
                {"name": "counted", "external": external, "tokenizer": "kvarn-demo"},
            ],
        }
        with serving(outer_home, configuration) as outer:
            yield inner, outer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fields", ASKED, ids="-".join)
def test_another_kvarn_answers_with_the_very_same_tokens(both, fields, stream):
    inner, outer = both
    answers = []
    for server, model in ((inner, "kvarn-demo"), (outer, "far")):
        body = {"model": model, "messages": QUESTION, **fields}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = server.http.post("/v1/chat/completions", json=body)
        answers.append(gathered(answer) if stream else whole(answer.json()))
    assert answers[0] == answers[1]


def whole(answer: dict[str, Any]) -> tuple[Any, ...]:
    choices = [
        (each["message"]["content"], calls_of(each["message"]), each["finish_reason"], each["logprobs"])
        for each in answer["choices"]
    ]
    return choices, answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls") or ()]


def gathered(answer: httpx.Response) -> tuple[Any, ...]:
    chunks = events_of(answer)
    texts: dict[int, str] = {}
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        delta = choice["delta"]
        pieces = [call["function"].get("arguments", "") for call in delta.get("tool_calls") or ()]
        texts[choice["index"]] = texts.get(choice["index"], "") + (delta.get("content") or "") + "".join(pieces)
    finishes = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    usage = chunks[-1]["usage"]
    return texts, finishes, usage["prompt_tokens"], usage["completion_tokens"]


def test_completions_and_responses_go_through_it(both):
    inner, outer = both
    texts = []
    for server, model in ((inner, "kvarn-demo"), (outer, "far")):
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        completion = client.completions.create(
            model=model, prompt=["One,", "Two,"], max_tokens=8, temperature=0, logprobs=1
        )
        response = client.responses.create(model=model, input="Say hello.", temperature=0, max_output_tokens=16)
        choices = [(choice.text, choice.logprobs) for choice in completion.choices]
        texts.append((choices, completion.usage.completion_tokens, response.output_text))
    assert texts[0] == texts[1]


def test_with_its_tokenizer_prompts_are_counted_exactly(both):
    inner, outer = both
    body = {"messages": QUESTION}
    counts = [
        server.http.post("/v1/messages/count_tokens", json={"model": model, **body}).json()["input_tokens"]
        for server, model in ((inner, "kvarn-demo"), (outer, "counted"))
    ]
    assert counts[0] == counts[1]
    tokens = [
        server.http.post("/tokenize", json={"model": model, "prompt": "hello there"}).json()["tokens"]
        for server, model in ((inner, "kvarn-demo"), (outer, "counted"))
    ]
    assert tokens[0] == tokens[1]
    long = {"model": "counted", "messages": [{"role": "user", "content": "word " * 20_000}]}
    refused = outer.http.post("/v1/chat/completions", json=long)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"


@contextmanager
def in_front_of(serving: Any, home: Path, command: list[Any], external: dict[str, Any], **environment: str) -> Any:
    """A gateway in front of a program: its model is `far`; `near` is the demo model in our engine."""
    with (home / "log-of-program").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
    far = {"name": "far", "external": {"probe_interval_s": 0.2, **external}}
    near = {"name": "near", "path": "kvarn-demo", "dtype": "float32"}
    configuration = {"gateway": {"port": 0}, "data_dir": str(home / "data"), "models": [far, near]}
    try:
        with serving(home, configuration) as server:
            yield server
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def transformers(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gateway in front of `transformers serve`, which runs the demo model with its own code."""
    home, port = tmp_path_factory.mktemp("transformers"), free_port()
    (home / "hub").mkdir()
    model = str(Path(kvarn.__file__).parent / "assets" / "kvarn-demo")
    program = Path(sys.executable).with_name("transformers")
    command = [program, "serve", model, "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    external = {"base_url": f"http://127.0.0.1:{port}/v1", "model": model, "probe": "health"}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "OMP_NUM_THREADS": "2"}
    with in_front_of(serving, home, command, external, **offline) as server:
        yield server


@pytest.mark.thorough
@pytest.mark.parametrize("stream", [True, thorough(False)])
def test_transformers_answers_as_our_engine_does(transformers, stream):
    answers = []
    for model in ("far", "near"):
        body = {"model": model, "messages": QUESTION, "max_tokens": 12, "temperature": 0, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        answer = transformers.http.post("/v1/chat/completions", json=body)
        answers.append(gathered(answer) if stream else whole(answer.json()))
    assert answers[0] == answers[1]


@pytest.fixture(scope="module")
def llama(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gateway in front of llama.cpp's server."""
    program, model = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server"), os.environ.get("LLAMA_MODEL")
    if program is None or model is None:
        pytest.skip("llama.cpp is not installed: set LLAMA_SERVER to its llama-server and LLAMA_MODEL to a .gguf file")
    home, port = tmp_path_factory.mktemp("llama"), free_port()
    command = [program, "--model", model, "--port", str(port), "--ctx-size", "1024", "--threads", "2"]
    external = {"base_url": f"http://127.0.0.1:{port}/v1", "api": "llama_cpp"}
    with in_front_of(serving, home, [*command, "--parallel", "2", "--jinja"], external) as server:
        yield server


@pytest.mark.parametrize("stream", [True, False])
def test_llama_cpp_answers(llama, stream):
    body = {"model": "far", "messages": QUESTION, "max_tokens": 12, "temperature": 0, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    answer = llama.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    if stream:
        texts, finishes, prompt, completion = gathered(answer)
        assert texts[0] and finishes[0] in ("stop", "length") and prompt > 0 and 0 < completion <= 12
    else:
        usage = answer.json()["usage"]
        assert usage["prompt_tokens"] > 0 and 0 < usage["completion_tokens"] <= 12
    text = llama.http.post("/v1/completions", json={"model": "far", "prompt": "One, two,", "max_tokens": 4}).json()
    assert text["choices"][0]["text"] and text["usage"]["completion_tokens"] == 4
    refused = llama.http.post("/v1/chat/completions", json={**body, "messages": QUESTION * 400})
    assert refused.status_code == 400, "its own words for a context that is too long"
