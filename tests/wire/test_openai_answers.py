from __future__ import annotations

from typing import Any

import msgspec
import openai.types as official
import openai.types.chat as official_chat

from kvarn.wire.openai import completions, encoders, models, usage
from kvarn.wire.openai.chat import answer as chat_answer
from kvarn.wire.openai.errors import ApiError, invalid_request, model_not_found

HEAD: dict[str, Any] = {"id": "x", "created": 1, "model": "m", "system_fingerprint": "fp_1"}


def encoded(answer: msgspec.Struct) -> dict[str, Any]:
    data = msgspec.json.decode(msgspec.json.encode(answer))
    assert isinstance(data, dict)
    return data


def test_the_official_client_reads_a_chat_answer() -> None:
    top = chat_answer.TopLogprob(token="a", logprob=-0.5, bytes=[97])
    token = chat_answer.TokenLogprobs(token="a", logprob=-0.5, bytes=[97], top_logprobs=[top])
    call = chat_answer.ToolCall(id="c", function=chat_answer.FunctionCall(name="f", arguments="{}"))
    answer = chat_answer.ChatCompletion(
        **HEAD,
        choices=[
            chat_answer.ChatChoice(
                index=0,
                message=chat_answer.AnswerMessage(content=None, tool_calls=[call]),
                finish_reason="tool_calls",
                logprobs=chat_answer.ChoiceLogprobs(content=[token]),
            )
        ],
        usage=usage.usage(7, 3, cached_tokens=5),
    )
    data = encoded(answer)
    read = official_chat.ChatCompletion.model_validate(data, strict=True)
    assert read.choices[0].message.tool_calls is not None
    assert read.choices[0].message.content is None
    assert read.usage is not None
    assert read.usage.total_tokens == 10
    assert read.usage.prompt_tokens_details is not None
    assert read.usage.prompt_tokens_details.cached_tokens == 5
    # The published document requires these even where they are null.
    assert {"refusal", "content", "role"} <= data["choices"][0]["message"].keys()
    assert {"index", "message", "finish_reason", "logprobs"} <= data["choices"][0].keys()


def test_a_chunk_carries_only_what_it_has() -> None:
    delta = chat_answer.Delta(content="hi")
    chunk = chat_answer.ChatCompletionChunk(**HEAD, choices=[chat_answer.ChunkChoice(index=0, delta=delta)])
    data = encoded(chunk)
    official_chat.ChatCompletionChunk.model_validate(data, strict=True)
    assert data["choices"] == [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None, "logprobs": None}]
    assert "usage" not in data


def test_usage_in_a_stream_is_null_until_the_last_chunk() -> None:
    early = chat_answer.ChatCompletionChunk(**HEAD, choices=[], usage=None)
    last = chat_answer.ChatCompletionChunk(**HEAD, choices=[], usage=usage.usage(1, 2))
    assert encoded(early)["usage"] is None
    read = official_chat.ChatCompletionChunk.model_validate(encoded(last), strict=True)
    assert read.usage is not None
    assert (read.usage.prompt_tokens, read.usage.completion_tokens) == (1, 2)


def test_tool_calls_stream_in_the_clients_pieces() -> None:
    first = chat_answer.ToolCallDelta(
        index=0, id="c", type="function", function=chat_answer.FunctionCallDelta(name="f", arguments="")
    )
    more = chat_answer.ToolCallDelta(index=0, function=chat_answer.FunctionCallDelta(arguments="{}"))
    choice = chat_answer.ChunkChoice(index=0, delta=chat_answer.Delta(tool_calls=[first, more]))
    data = encoded(chat_answer.ChatCompletionChunk(**HEAD, choices=[choice]))
    official_chat.ChatCompletionChunk.model_validate(data, strict=True)
    assert data["choices"][0]["delta"]["tool_calls"][1] == {"index": 0, "function": {"arguments": "{}"}}


def test_the_official_client_reads_completions_embeddings_and_models() -> None:
    logprobs = completions.CompletionLogprobs(
        tokens=["a"], token_logprobs=[-0.5], top_logprobs=[{"a": -0.5}], text_offset=[0]
    )
    choice = completions.CompletionChoice(index=0, text="a", finish_reason="length", logprobs=logprobs)
    completion = completions.Completion(**HEAD, choices=[choice], usage=usage.usage(1, 1))
    official.Completion.model_validate(encoded(completion), strict=True)
    vectors = encoders.EmbeddingList(
        model="m",
        data=[encoders.Embedding(index=0, embedding=[0.5])],
        usage=encoders.EmbeddingUsage(prompt_tokens=1, total_tokens=1),
    )
    official.CreateEmbeddingResponse.model_validate(encoded(vectors), strict=True)
    official.Model.model_validate(encoded(models.Model(id="m", created=1)), strict=True)


def test_errors_carry_openais_fields() -> None:
    error = ApiError(429, "slow down", type="rate_limit_error", code="queue_full", headers={"retry-after": "1"})
    assert error.body() == {
        "error": {"message": "slow down", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    }
    assert error.headers == {"retry-after": "1"}
    assert (invalid_request("no", "n").status, invalid_request("no", "n").param) == (400, "n")
    missing = model_not_found("x", ["a", "b"])
    assert (missing.status, missing.param, missing.code) == (404, "model", "model_not_found")
    assert "'a', 'b'" in missing.message
