"""Text completions through the official client: prompts in every form, echo, log-probabilities."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from asking import events_of
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.messages import RefusalReason


def test_a_prompt_is_continued_whole_and_streamed(answering, sdk):
    answering("långt bort")
    whole = sdk.completions.create(model="tiny", prompt="Hej")
    assert whole.object == "text_completion" and whole.choices[0].text == "långt bort"
    assert whole.choices[0].finish_reason == "stop"
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(sdk.completions.create(model="tiny", prompt="Hej", **options))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "långt bort"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage


def test_sixteen_tokens_are_the_default(answering, sdk):
    answering("x" * 100)
    answer = sdk.completions.create(model="tiny", prompt="Hej")
    assert answer.choices[0].text == "x" * 16 and answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_times_n_are_numbered_prompt_by_prompt(server, sdk, answering, stream):
    answering("a1", "b22")
    prompts: Any = [[72, 101], [106], [1, 2, 3]]
    texts = dict.fromkeys(range(6), "")
    if stream:
        for chunk in sdk.completions.create(model="tiny", prompt=prompts, n=2, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        answer = sdk.completions.create(model="tiny", prompt=prompts, n=2)
        texts = {choice.index: choice.text for choice in answer.choices}
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 3 * (3 + 4))
    assert texts == {0: "a1", 1: "b22", 2: "a1", 3: "b22", 4: "a1", 5: "b22"}
    assert [submit.prompt_token_ids for submit in server.chat.submitted] == prompts


def test_one_refused_prompt_refuses_all_and_aborts_the_others(server, sdk, wait_for):
    normal = server.chat.generate

    def refuse_second(request: Any, hold: Any = None) -> Any:
        if request.request_id.endswith("-1"):
            server.chat.refusal = RequestRefusedError(RefusalReason.QUEUE_FULL, "full")
        else:
            server.chat.refusal = None
        return normal(request, hold)

    server.chat.step_s = 0.01
    server.chat.answer = lambda request, index: [120] * 400
    server.chat.generate = refuse_second
    with pytest.raises(openai.RateLimitError):
        sdk.completions.create(model="tiny", prompt=["a", "b", "c"], max_tokens=400)
    wait_for(lambda: not server.chat.running, "the other prompts to be aborted")


def test_logprobs_have_the_older_shape_with_offsets(answering, sdk):
    answering("abc")
    logprobs = sdk.completions.create(model="tiny", prompt="Hej", logprobs=2).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "c"] and logprobs.text_offset == [0, 1, 2]
    assert logprobs.token_logprobs == [-0.25, -0.25, -0.25]
    assert logprobs.top_logprobs is not None and logprobs.top_logprobs[0] == {"a": -0.25, "b": -0.5}


def test_offsets_point_into_the_text_where_characters_take_several_tokens(answering, sdk):
    answering("å😀b")
    # Three special tokens, which the text does not show, then "é" in two tokens and a letter.
    prompt = [256, 259, 260, *"éa".encode()]
    choice = sdk.completions.create(model="tiny", prompt=prompt, echo=True, logprobs=0).choices[0]
    assert choice.text == "éaå😀b" and choice.logprobs is not None
    assert choice.logprobs.text_offset == [0, 0, 0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4]


def test_bad_words_are_tokenized_once_however_many_prompts_there_are(server, sdk, monkeypatch):
    batches: list[list[str]] = []
    encode_batch = Tokenizer.encode_batch

    def counted(self: Tokenizer, texts: Any, **options: Any) -> list[list[int]]:
        batches.append(list(texts))
        return encode_batch(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    sdk.completions.create(model="tiny", prompt=["a", "b", "c"], extra_body={"bad_words": ["no"]})
    assert batches.count(["no", " no"]) == 1
    assert [submit.sampling.bad_words for submit in server.chat.submitted] == [[[110, 111], [32, 110, 111]]] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_echo_begins_with_the_prompt_and_its_logprobs(answering, client, stream):
    answering("cd")
    body = {"model": "tiny", "prompt": "ab", "echo": True, "logprobs": 1, "stream": stream}
    if stream:
        chunks = [event["choices"][0] for event in events_of(client.post("/v1/completions", json=body))]
        text = "".join(chunk["text"] for chunk in chunks)
        parts = [chunk["logprobs"] for chunk in chunks]
        logprobs = {key: [entry for part in parts for entry in part[key]] for key in parts[0]}
    else:
        choice = client.post("/v1/completions", json=body).json()["choices"][0]
        text, logprobs = choice["text"], choice["logprobs"]
    assert text == "abcd"
    assert logprobs["tokens"] == ["a", "b", "c", "d"] and logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["token_logprobs"] == [None, -0.25, -0.25, -0.25]
    assert logprobs["top_logprobs"][0] is None


def test_a_prompt_can_be_scored_without_an_answer(server, client):
    body = {"model": "tiny", "prompt": "abc", "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = client.post("/v1/completions", json=body).json()
    choice = answer["choices"][0]
    assert choice["text"] == "abc" and choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 0


def test_the_stop_string_is_kept_where_asked_for(answering, sdk):
    answering("one. two.")
    answer = sdk.completions.create(model="tiny", prompt="x", stop=".", extra_body={"include_stop_str_in_output": True})
    assert answer.choices[0].text == "one." and answer.choices[0].model_dump()["stop_reason"] == "."


def test_a_stop_token_of_the_client_is_named_and_not_shown(server, sdk):
    answer = sdk.completions.create(model="tiny", prompt="x", extra_body={"stop_token_ids": [ord("o")]})
    assert answer.choices[0].text == "Hell"
    assert answer.choices[0].model_dump()["stop_reason"] == ord("o")
