"""The official OpenAI client against the really started server."""

from __future__ import annotations

import math
from typing import Any

import pytest

QUESTION: Any = [{"role": "user", "content": "What is a KV cache?"}]
GREEDY: dict[str, Any] = {"model": "kvarn-demo", "temperature": 0, "max_tokens": 24}


def test_a_streamed_chat_says_what_the_whole_one_says(sdk):
    whole = sdk.chat.completions.create(messages=QUESTION, **GREEDY)
    assert whole.choices[0].message.content
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(sdk.chat.completions.create(messages=QUESTION, **GREEDY, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens <= 24
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_streamed_completion_says_what_the_whole_one_says(sdk):
    whole = sdk.completions.create(prompt="Paged attention", **GREEDY)
    chunks = list(sdk.completions.create(prompt="Paged attention", stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text != ""
    batch = sdk.completions.create(prompt=["Paged attention", "A token"], **GREEDY)
    assert batch.choices[0].text == whole.choices[0].text and len(batch.choices) == 2


def test_log_probabilities_agree_with_what_was_drawn(sdk):
    choice = sdk.chat.completions.create(messages=QUESTION, logprobs=True, top_logprobs=3, **GREEDY).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content
    for token in choice.logprobs.content:
        assert token.token == token.top_logprobs[0].token and token.logprob == token.top_logprobs[0].logprob
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1.0001
    spelled = bytes(byte for token in choice.logprobs.content for byte in token.bytes or ())
    assert spelled.decode() == choice.message.content


def test_the_demo_model_adds_right_without_any_sampling_parameter(sdk):
    for _ in range(3):
        asked: Any = [{"role": "user", "content": "What is 17 + 25?"}]
        answer = sdk.chat.completions.create(model="kvarn-demo", messages=asked)
        assert "42" in (answer.choices[0].message.content or "")


def test_a_seed_gives_the_same_choices_again(sdk):
    # A prompt it never learned an answer to: many tokens are likely.
    options: dict[str, Any] = {"model": "kvarn-demo", "prompt": "Zq 7", "n": 3, "max_tokens": 12, "temperature": 2.0}
    first, again, other = (sdk.completions.create(seed=seed, **options) for seed in (7, 7, 8))
    texts = [[choice.text for choice in answer.choices] for answer in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) > 1, "choices of one request are drawn apart"


def test_a_repeated_prompt_comes_from_the_cache_and_a_salt_keeps_it_apart(sdk):
    long: Any = [{"role": "user", "content": "Repeat after me: " + "paged blocks of sixteen tokens. " * 8}]

    def cached(**extra: Any) -> tuple[int, str | None]:
        answer = sdk.chat.completions.create(messages=long, **GREEDY, extra_body=extra)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0, answer.choices[0].message.content

    first, again, salted, salted_again = cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a")
    assert first[0] < again[0] and again[0] >= 32
    assert salted[0] == 0 and salted_again[0] == again[0]
    assert first[1] == again[1] == salted[1] == salted_again[1]


def test_vllm_extensions_do_what_they_say(sdk):
    greedy = sdk.chat.completions.create(messages=QUESTION, **GREEDY).choices[0].message.content
    hot: dict[str, Any] = {**GREEDY, "temperature": 2}
    narrow = sdk.chat.completions.create(messages=QUESTION, extra_body={"top_k": 1}, **hot)
    assert narrow.choices[0].message.content == greedy
    likely = sdk.chat.completions.create(messages=QUESTION, extra_body={"min_p": 1.0}, **hot)
    assert likely.choices[0].message.content == greedy
    endless: dict[str, Any] = {**GREEDY, "max_tokens": 40}
    forced = sdk.chat.completions.create(messages=QUESTION, extra_body={"ignore_eos": True, "priority": 10}, **endless)
    assert forced.usage is not None and forced.usage.completion_tokens == 40
    assert forced.choices[0].finish_reason == "length"


def test_embeddings_place_like_beside_like(sdk):
    texts = ["A cat sat on the mat.", "A kitten is sitting on a rug.", "Interest rates rose by half a percent."]
    batch = [each.embedding for each in sdk.embeddings.create(model="minilm", input=texts).data]
    assert {len(vector) for vector in batch} == {384}
    near, far = (sum(a * b for a, b in zip(batch[0], batch[i], strict=True)) for i in (1, 2))
    assert near > 0.5 > far
    alone = sdk.embeddings.create(model="minilm", input=texts[0], encoding_format="float").data[0].embedding
    assert alone == pytest.approx(batch[0], abs=1e-4)
