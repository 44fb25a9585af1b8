"""Chat answers against OpenAI's published document: with tool calls, streamed, stored."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from published_schemas import check

PATH = "/v1/chat/completions"
FUNCTION = {"name": "add", "parameters": {"type": "object", "required": ["a"]}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = '<tool_call>{"name": "add", "arguments": {"b": 1}}</tool_call>'
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hej"}]}

REQUESTS: list[dict[str, Any]] = [
    {},
    {"tools": [TOOL]},
    {"tools": [TOOL], "parallel_tool_calls": False, "logprobs": True, "top_logprobs": 2, "n": 2},
    {"tools": [TOOL], "tool_choice": "required"},
    {"functions": [FUNCTION]},
    {"store": True, "metadata": {"a": "b"}, "tools": [TOOL], "service_tier": "default"},
]


@pytest.fixture
def tenant(server: Any, answering: Callable[..., None]) -> Iterator[httpx.Client]:
    answering(f"So: {CALL}{CALL}")
    with server.add_tenant(f"published-{time.monotonic_ns()}") as made:
        yield made


@pytest.mark.parametrize("fields", REQUESTS)
def test_an_answer_is_what_the_document_says(tenant, fields):
    check("CreateChatCompletionResponse", tenant.post(PATH, json={**ASK, **fields}).json())


@pytest.mark.parametrize("fields", REQUESTS)
def test_every_chunk_is_what_the_document_says(tenant, fields):
    body = {**ASK, **fields, "stream": True, "stream_options": {"include_usage": True}}
    lines = tenant.post(PATH, json=body).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert len(chunks) > 3
    for chunk in chunks:
        check("CreateChatCompletionStreamResponse", chunk)


def test_stored_completions_are_what_the_document_says(tenant):
    check("ChatCompletionList", tenant.get(PATH).json())
    kept = tenant.post(PATH, json={**ASK, "store": True, "tools": [TOOL]}).json()["id"]
    check("ChatCompletionList", tenant.get(PATH).json())
    check("CreateChatCompletionResponse", tenant.get(f"{PATH}/{kept}").json())
    check("CreateChatCompletionResponse", tenant.post(f"{PATH}/{kept}", json={"metadata": {"a": "b"}}).json())
    messages = tenant.get(f"{PATH}/{kept}/messages").json()
    assert [message["role"] for message in messages["data"]] == ["user"]
    for message in messages["data"]:
        message["role"] = "assistant"  # the only one that the schema knows; its own example shows the user's
    check("ChatCompletionMessageList", messages)
    check("ChatCompletionDeleted", tenant.delete(f"{PATH}/{kept}").json())
