"""Chat completions through the official client: whole and streamed."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asking import CHAT, HELLO, chat, events_of, prompt_of


def test_a_whole_answer_has_text_finish_reason_and_usage(server, sdk):
    server.chat.cached_tokens = 3
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.model == "tiny"
    assert answer.choices[0].message.content == "Hello, världen! 🌍"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    prompt = server.chat.submitted[0].prompt_token_ids
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len("Hello, världen! 🌍".encode()) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_a_stream_gives_role_text_and_finish_reason_and_never_cuts_a_character(server, sdk):
    chunks = list(sdk.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == "Hello, världen! 🌍"
    assert "🌍" in texts and "ä" in texts
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_in_a_chunk_without_choices_where_asked_for(client):
    body = {"model": "tiny", "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    response = client.post(CHAT, json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(response)
    assert response.text.endswith("data: [DONE]\n\n")
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 22
    assert all("usage" in event and event["usage"] is None for event in events[:-1])


def test_choices_are_interleaved_and_kept_apart(answering, sdk):
    answering("ett", "två och mer", "tre")
    texts = {0: "", 1: "", 2: ""}
    reasons: dict[int, str] = {}
    order: list[int] = []
    for chunk in sdk.chat.completions.create(model="tiny", messages=HELLO, n=3, stream=True):
        choice = chunk.choices[0]
        order.append(choice.index)
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert texts == {0: "ett", 1: "två och mer", 2: "tre"}
    assert reasons == {0: "stop", 1: "stop", 2: "stop"}
    assert order[:9] == [0, 0, 1, 1, 2, 2, 0, 1, 2]  # role and first text of each, then in turn
    whole = sdk.chat.completions.create(model="tiny", messages=HELLO, n=3)
    assert [choice.message.content for choice in whole.choices] == ["ett", "två och mer", "tre"]
    assert whole.usage is not None and whole.usage.completion_tokens == 4 + 13 + 4


def test_max_tokens_ends_with_length(server, sdk):
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=5)
    assert answer.choices[0].message.content == "Hello" and answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 5


def test_a_stop_string_ends_the_answer_before_it_and_aborts_the_request(server, answering, sdk, wait_for):
    answering("one two STOP three " * 50)
    for stream in (False, True):
        server.chat.aborted.clear()
        if stream:
            chunks = list(sdk.chat.completions.create(model="tiny", messages=HELLO, stop=["STOP"], stream=True))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            answer = sdk.chat.completions.create(model="tiny", messages=HELLO, stop=["STOP"])
            text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
            assert answer.usage is not None and answer.usage.completion_tokens == len("one two STOP")
        assert (text, reason) == ("one two ", "stop")
        wait_for(lambda: len(server.chat.aborted) == 1, "the engine's request to be aborted")


def test_a_stopped_choice_does_not_end_the_others(answering, sdk):
    answering("a.b.c", "no full stop here")
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO, n=2, stop=".")
    assert [choice.message.content for choice in answer.choices] == ["a", "no full stop here"]
    assert answer.usage is not None and answer.usage.completion_tokens == 2 + 18


def test_stop_strings_count_only_from_min_tokens_on(answering, sdk):
    answering("a.b.c.d")
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO, stop=".", extra_body={"min_tokens": 4})
    assert answer.choices[0].message.content == "a.b"


def test_logprobs_cover_the_text_token_by_token(answering, sdk):
    answering("hå")
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
    whole = sdk.chat.completions.create(**options).choices[0].logprobs
    assert whole is not None and whole.content is not None
    assert bytes(byte for token in whole.content for byte in token.bytes or ()) == "hå".encode()
    assert [len(token.top_logprobs) for token in whole.content] == [2, 2, 2]
    assert whole.content[0].token == "h" and whole.content[0].logprob == -0.25
    streamed = [chunk.choices[0].logprobs for chunk in sdk.chat.completions.create(**options, stream=True)]
    assert [token for part in streamed if part for token in part.content or ()] == whole.content


def test_without_tools_or_with_choice_none_the_text_stays_text(answering, sdk):
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    answering(text)
    tool: Any = {"type": "function", "function": {"name": "add"}}
    for options in ({}, {"tools": [tool], "tool_choice": "none"}):
        choice = sdk.chat.completions.create(model="tiny", messages=HELLO, **options).choices[0]
        assert choice.message.content == text and choice.finish_reason == "stop"


def test_the_engine_gets_the_rendered_prompt_and_the_extensions(server, sdk):
    extra = {"top_k": 7, "min_p": 0.1, "ignore_eos": True, "min_tokens": 2, "priority": 10, "cache_salt": "s"}
    sdk.chat.completions.create(model="tiny", messages=HELLO, seed=11, max_tokens=4, extra_body=extra)
    submit, sampling = server.chat.submitted[0], server.chat.submitted[0].sampling
    assert prompt_of(server) == "<bos><|user|>Hej<|assistant|>"
    assert (sampling.top_k, sampling.min_p, sampling.min_tokens, sampling.seed) == (7, 0.1, 2, 11)
    assert sampling.stop_token_ids == [] and (submit.priority, submit.cache_salt) == (10, "/s")


def test_a_continued_message_is_echoed_where_asked_for(answering, client):
    answering(" and on")
    messages = [*HELLO, {"role": "assistant", "content": "On"}]
    body = {"model": "tiny", "messages": messages, "continue_final_message": True, "echo": True}
    body["add_generation_prompt"] = False
    whole = client.post(CHAT, json=body).json()
    assert whole["choices"][0]["message"]["content"] == "On and on"
    events = events_of(client.post(CHAT, json={**body, "stream": True}))
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == "On and on"


def test_prompt_logprobs_and_token_ids_are_given_where_asked_for(client):
    body = {"model": "tiny", "messages": HELLO, "prompt_logprobs": 1, "return_token_ids": True}
    answer = client.post(CHAT, json=body).json()
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])
    assert answer["prompt_logprobs"][0] is None and answer["prompt_logprobs"][1]
    assert answer["choices"][0]["token_ids"][:5] == list(b"Hello")


def test_a_request_has_one_id_and_a_client_may_use_its_own_twice(server, client):
    body = chat()
    made = client.post(CHAT, json={**body, "n": 2})
    own_id = made.json()["id"].removeprefix("chatcmpl-")
    assert made.headers["x-request-id"] == f"req-{own_id}"
    assert [submit.request_id for submit in server.chat.submitted] == [own_id]
    server.chat.step_s = 0.01
    with ThreadPoolExecutor(2) as pool:  # both at once
        ask = functools.partial(client.post, CHAT, json=body, headers={"x-request-id": "mine"})
        answers = [future.result() for future in [pool.submit(ask) for _ in range(2)]]
    assert [(answer.status_code, answer.headers["x-request-id"]) for answer in answers] == [(200, "mine")] * 2
    assert len({answer.json()["id"] for answer in answers}) == 2
