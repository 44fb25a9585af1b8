"""Chat completions through the official client: whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

HELLO = [{"role": "user", "content": "Hej"}]


@pytest.fixture
def sdk(house: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0, timeout=20) as made:
        yield made


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_whole_answer_has_text_finish_reason_and_usage(house: Any, sdk: openai.OpenAI) -> None:
    house.chat.cached_tokens = 3
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.model == "tiny"
    assert answer.choices[0].message.content == "Hello, världen! 🌍"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    prompt = house.chat.submitted[0].prompt_token_ids
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len("Hello, världen! 🌍".encode()) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_a_stream_gives_role_text_and_finish_reason_and_never_cuts_a_character(house: Any, sdk: openai.OpenAI) -> None:
    chunks = list(sdk.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == "Hello, världen! 🌍"
    assert "🌍" in texts and "ä" in texts
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_in_a_chunk_without_choices_where_asked_for(client: httpx.Client) -> None:
    body = {"model": "tiny", "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    response = client.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(response)
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 22
    assert all("usage" in event and event["usage"] is None for event in events[:-1])
