"""The parts of the external client by themselves: streams cut anywhere, odd forms of answers, fields by server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.catalog.timeouts import StageTimeoutError, within_timeouts
from kvarn.config.external import ExternalConfig
from kvarn.external.answer import read_events, read_part
from kvarn.external.deltas import ChoiceReader
from kvarn.external.errors import (
    ExternalFailedError,
    ExternalRefusedError,
    error_of_answer,
    error_of_event,
    retry_after_of,
)
from kvarn.external.fields import chat_body
from kvarn.routing.timeouts import StageTimeouts, TimeoutStage
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import ApiError
from profiles import examples

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12), max_size=6)


def encoded(texts: list[str], newline: str) -> bytes:
    events = [f"data: {json.dumps(text, ensure_ascii=False)}{newline}{newline}" for text in texts]
    comments = [f": keep alive{newline}{newline}", f"event: x{newline}id: 1{newline}"]
    return "".join([comments[0], *events, comments[1], f"data: [DONE]{newline}{newline}ignored"]).encode()


async def cut(data: bytes, places: list[int]) -> AsyncIterator[bytes]:
    ends = sorted({*[place % (len(data) + 1) for place in places], len(data)})
    for start, end in zip([0, *ends], ends, strict=False):
        yield data[start:end]


@settings(max_examples=examples(200))
@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_a_stream_is_read_the_same_wherever_it_is_cut(texts: list[str], places: list[int], newline: str) -> None:
    async def read() -> list[str]:
        return [json.loads(data) async for data in read_events(cut(encoded(texts, newline), places))]

    assert asyncio.run(read()) == texts


def part(**choice: Any) -> Any:
    (read,) = read_part(json.dumps({"choices": [choice]}).encode()).choices
    return read


def test_odd_forms_of_answers_are_understood() -> None:
    reader = ChoiceReader(0)
    parts = [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert reader.read(part(delta={"content": parts})).text == "ab"
    assert reader.read(part(delta={"content": None})).text == ""
    call = {"function": {"name": "f", "arguments": {"x": 1}}}  # no index, no id, an object
    first = reader.read(part(delta={"tool_calls": [call]})).tool_calls[0]
    second = reader.read(part(delta={"tool_calls": [call]})).tool_calls[0]
    assert (first.index, second.index) == (0, 1) and first.id != second.id and first.function.arguments == '{"x": 1}'
    assert reader.read(part(delta={}, finish_reason="eos")).finish_reason == "stop"
    with pytest.raises(ExternalFailedError, match="broke the answer off"):
        reader.read(part(delta={}, finish_reason="abort"))


def test_calls_with_gaps_in_their_numbers_are_numbered_anew() -> None:
    reader = ChoiceReader(0)
    calls = []
    for index, name, arguments in ((3, "f", ""), (3, None, "{}"), (5, "g", "["), (3, None, "x"), (None, None, "]")):
        function = {"name": name, "arguments": arguments}
        calls += reader.read(part(delta={"tool_calls": [{"index": index, "function": function}]})).tool_calls
    assert [(call.index, call.function.arguments) for call in calls] == [
        (0, ""),
        (0, "{}"),
        (1, "["),
        (0, "x"),
        (1, "]"),
    ]
    with pytest.raises(ExternalFailedError, match="has not begun"):
        ChoiceReader(0).read(part(delta={"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"choices": [{"index": "x"}]}', b'{"choices": 3}', b"\xff", b"[" * 5000]
)
def test_what_is_no_answer_is_a_failure(data: bytes) -> None:
    with pytest.raises(ExternalFailedError):
        read_part(data)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"object": "error", "message": "too long", "type": "BadRequestError"}', "too long"),
        (b'{"detail": "too long"}', "too long"),
        (b"too long", "too long"),
        (b"", "no reason given"),
    ],
)
def test_each_servers_errors_are_read(body: bytes, message: str) -> None:
    error = error_of_answer(400, body, {})
    assert isinstance(error, ExternalRefusedError) and str(error) == message


def test_errors_in_a_stream_keep_their_status() -> None:
    refused = error_of_event({"message": "too long", "code": 400, "param": "x"})
    assert isinstance(refused, ExternalRefusedError) and (refused.status, refused.param) == (400, "x")
    assert isinstance(error_of_event({"message": "dead", "code": "internal"}), ExternalFailedError)
    assert isinstance(error_of_event("dead"), ExternalFailedError)


def test_retry_after_is_a_number_or_a_date_and_bounded() -> None:
    assert retry_after_of({"retry-after": "2.5"}) == 2.5
    assert retry_after_of({"retry-after": "1e9"}) == 600 and retry_after_of({"retry-after": "-3"}) == 0
    later = retry_after_of({"retry-after": format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)})
    assert later is not None and 90 < later <= 100
    for value in ("soon", "nan", ""):
        assert retry_after_of({"retry-after": value}) is None
    assert retry_after_of({}) is None


EXTENSIONS = {
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "ignore_eos": True,
    "min_tokens": 2,
    "bad_words": ["x"],
    "chat_template_kwargs": {"a": 1},
    "structured_outputs": {"regex": "a"},
}
KNOWN = {
    "openai": set(),
    "ollama": set(),
    "llama_cpp": {"top_k", "min_p", "repetition_penalty", "ignore_eos", "chat_template_kwargs"},
    "sglang": {"top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "chat_template_kwargs"},
    "vllm": set(EXTENSIONS),
    "kvarn": set(EXTENSIONS),
}


@pytest.mark.parametrize("field", EXTENSIONS)
@pytest.mark.parametrize("api", KNOWN)
def test_extensions_are_sent_to_servers_that_know_them_and_refused_for_others(api: str, field: str) -> None:
    body: dict[str, Any] = {"model": "far", "messages": [{"role": "user", "content": "x"}], field: EXTENSIONS[field]}
    request = ChatCompletionRequest.model_validate(body)
    config = ExternalConfig.model_validate({"base_url": "http://x", "api": api})
    if field in KNOWN[api]:
        sent = chat_body(request, "there", config, None, "salt")
        name = "repeat_penalty" if (api, field) == ("llama_cpp", "repetition_penalty") else field
        assert sent[name] == EXTENSIONS[field] and sent["model"] == "there"
        assert ("cache_salt" in sent) == (api in ("vllm", "kvarn"))
    else:
        with pytest.raises(ApiError, match=field):
            chat_body(request, "there", config, None, "salt")


def test_neutral_values_and_bounds() -> None:
    fields = {"top_k": -1, "min_p": 0, "repetition_penalty": 1, "skip_special_tokens": True, "user": "me"}
    request = ChatCompletionRequest.model_validate(
        {"model": "far", "messages": [{"role": "user", "content": "x", "name": "n"}], "max_tokens": None, **fields}
    )
    config = ExternalConfig(base_url="http://x", streams=False)
    assert chat_body(request, "there", config, 99, "salt") == {
        "model": "there",
        "messages": [{"role": "user", "content": "x", "name": "n"}],
        "max_completion_tokens": 99,
    }


async def test_time_outs_name_their_stage_and_close_what_they_waited_for() -> None:
    closed = []

    async def items(*pauses: float) -> AsyncGenerator[str, None]:
        try:
            for pause in pauses:
                await asyncio.sleep(pause)
                yield "token"
        finally:
            closed.append(True)

    async def run(timeouts: StageTimeouts, *pauses: float) -> list[str]:
        got = []
        try:
            async for item in within_timeouts(items(*pauses), timeouts, lambda item: item == "token"):
                got.append(item)
        except StageTimeoutError as error:
            got.append(error.stage)
        return got

    assert await run(StageTimeouts(first_token_s=0.05), 3600) == [TimeoutStage.FIRST_TOKEN]
    assert await run(StageTimeouts(first_token_s=60, between_tokens_s=0.05), 0, 3600) == ["token", "between_tokens"]
    assert await run(StageTimeouts(total_s=0.05), 0, 0, 3600) == ["token", "token", TimeoutStage.TOTAL]
    assert await run(StageTimeouts(60, 60, 60, 60), 0, 0) == ["token", "token"]
    assert len(closed) == 4
