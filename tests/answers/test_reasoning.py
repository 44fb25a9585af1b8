"""Reasoning told from the answer over HTTP: in chat, responses and Anthropic's messages, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import openai
import pytest

from asking import HELLO, events_of, prompt_of
from fake_replica import ASSISTANT, EOS, SYSTEM, USER, answer_text
from kvarn.text.reasoning.formats import GPT_OSS, QWEN3
from kvarn.text.reasoning.splitter import TagSplitter
from kvarn.text.tool_calls.formats import GPT_OSS as HARMONY_CALLS
from kvarn.text.tool_calls.formats import HERMES

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content or '' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% elif opened is defined %}<think>\n{% endif %}{% endif %}"
)
THOUGHT = "<think>\nIt is noon.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOL: Any = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def thinker(serve: Any) -> Iterator[Any]:
    """A gateway whose model reasons as Qwen 3 does."""

    def prepare(server: Any) -> None:
        served = server.served["tiny"]
        served.config = served.config.model_copy(update={"chat_template": TEMPLATE})

    with serve(prepare) as server:
        yield server


@pytest.fixture
def server(thinker: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    thinker.chat.reset()
    served = thinker.served["tiny"]
    monkeypatch.setattr(served, "text", served.text)  # a test may put another in its place
    return thinker


Seen = tuple[str | None, str | None, str | None, int]


def whole(sdk: openai.OpenAI, **options: Any) -> Seen:
    """Reasoning, content, finish reason and reasoning tokens of an answer."""
    answer = sdk.chat.completions.create(model="tiny", messages=options.pop("messages", HELLO), **options)
    message, extra = answer.choices[0].message, answer.choices[0].message.model_extra or {}
    assert extra.get("reasoning") == extra.get("reasoning_content")
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    tokens = answer.usage.completion_tokens_details.reasoning_tokens
    return extra.get("reasoning"), message.content, answer.choices[0].finish_reason, tokens or 0


def streamed(sdk: openai.OpenAI, **options: Any) -> Seen:
    """The same of a stream."""
    told: dict[str, str] = {}
    reason, tokens = None, 0
    options |= {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in sdk.chat.completions.create(model="tiny", messages=options.pop("messages", HELLO), **options):
        if chunk.usage is not None and chunk.usage.completion_tokens_details is not None:
            tokens = chunk.usage.completion_tokens_details.reasoning_tokens or 0
        for choice in chunk.choices:
            delta = choice.delta.to_dict()
            assert not (told.get("content") and delta.get("reasoning")), "reasoning comes first"
            for name in ("reasoning", "reasoning_content", "content"):
                told[name] = told.get(name, "") + str(delta.get(name) or "")
            reason = choice.finish_reason or reason
    assert told["reasoning"] == told["reasoning_content"]
    return told["reasoning"] or None, told["content"] or None, reason, tokens


BOTH = pytest.mark.parametrize("ask", [whole, streamed])
STEPS = pytest.mark.parametrize("tokens_per_step", [1, 7, 1000])


@BOTH
@STEPS
def test_reasoning_comes_apart_from_the_content_and_its_tokens_are_counted(
    server, answering, sdk, ask, tokens_per_step
):
    server.chat.tokens_per_step = tokens_per_step
    answering(f"{THOUGHT}God dag.")
    counted = len("<think>\nIt is noon.\n</think>")  # a token each
    assert ask(sdk) == ("It is noon.", "God dag.", "stop", counted)
    assert ask(sdk, extra_body={"include_reasoning": False}) == (None, "God dag.", "stop", counted)
    answering("God dag.")
    assert ask(sdk) == (None, "God dag.", "stop", 0)


@BOTH
def test_the_prompt_may_have_begun_or_ended_the_reasoning(server, answering, sdk, ask):
    answering("It is noon.\n</think>\n\nGod dag.")
    opened = {"extra_body": {"chat_template_kwargs": {"opened": True}}}
    assert ask(sdk, **opened) == ("It is noon.", "God dag.", "stop", len("It is noon.\n</think>"))
    assert prompt_of(server).endswith("<|assistant|><think>\n")
    answering("<think> is a tag.")
    for off in ({"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}):
        assert ask(sdk, **off) == (None, "<think> is a tag.", "stop", 0)
        assert prompt_of(server).endswith("<|assistant|><think>\n\n</think>\n\n")
    answering(" noon.</think>God dag.")
    begun = [*HELLO, {"role": "assistant", "content": "<think>It is"}]
    go_on = {"messages": begun, "extra_body": {"continue_final_message": True, "add_generation_prompt": False}}
    assert ask(sdk, **go_on) == ("noon.", "God dag.", "stop", len(" noon.</think>"))


@BOTH
def test_an_answer_that_ends_within_its_reasoning_has_no_content(answering, sdk, ask):
    answering(f"{THOUGHT}God dag.")
    assert ask(sdk, max_tokens=12) == ("It i", None, "length", 12)


@BOTH
@STEPS
def test_stop_strings_count_in_the_content_only(server, answering, sdk, ask, tokens_per_step):
    server.chat.tokens_per_step = tokens_per_step
    answering("<think>Noon, I say.</think>God dag, I say.")
    assert ask(sdk, stop=[", I"])[:3] == ("Noon, I say.", "God dag", "stop")
    assert ask(sdk, stop=["nk>"])[:3] == ("Noon, I say.", "God dag, I say.", "stop")


@BOTH
def test_calls_after_the_reasoning_are_found(answering, sdk, ask):
    answering(f"<think>I call {CALL} now.</think>\n{CALL}")
    assert ask(sdk, tools=[TOOL])[:3] == (f"I call {CALL} now.", None, "tool_calls")


def test_a_forced_call_ends_reasoning_that_the_prompt_has_opened(server, answering, sdk):
    answering(" {}}")
    named: Any = {"type": "function", "function": {"name": "f"}}
    body = {"chat_template_kwargs": {"opened": True}}
    answer = sdk.chat.completions.create(
        model="tiny", messages=HELLO, tools=[TOOL], tool_choice=named, extra_body=body
    ).choices[0]
    assert answer.message.tool_calls is not None and answer.message.tool_calls[0].type == "function"
    assert answer.message.tool_calls[0].function.arguments == "{}"
    assert prompt_of(server).endswith(f"<think>\n\n</think>\n\n{HERMES.opening('f')}")


def test_reasoning_in_the_content_of_an_earlier_answer_is_told_from_it(server, client):
    answers = [THOUGHT + "Hello.", "No end: <think>", "It is noon.</think>Hello."]
    messages = [each for text in answers for each in (*HELLO, {"role": "assistant", "content": text})]
    client.post("/v1/chat/completions", json={"model": "tiny", "messages": [*messages, *HELLO]}).raise_for_status()
    thought = "<think>It is noon.</think>Hello."
    for answer in (thought, "No end: <think>", thought):
        assert f"<|assistant|>{answer}<|user|>" in prompt_of(server)
    begun = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    client.post("/v1/chat/completions", json={"model": "tiny"} | begun).raise_for_status()
    assert prompt_of(server).endswith(answers[-1])


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_what_was_thought_goes_back_to_the_template(server, sdk, name):
    history = [*HELLO, {"role": "assistant", "content": "God dag.", name: "It is noon."}, *HELLO]
    sdk.chat.completions.create(model="tiny", messages=history)
    assert "<|assistant|><think>It is noon.</think>God dag.<|user|>" in prompt_of(server)


def test_logprobs_are_those_of_all_tokens(answering, sdk):
    answering("<think>a</think>bc")
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO, logprobs=True).choices[0]
    assert answer.logprobs is not None and answer.logprobs.content is not None
    assert "".join(each.token for each in answer.logprobs.content) == "<think>a</think>bc"


@BOTH
@STEPS
def test_channels_of_gpt_oss_are_told_apart(server, sdk, monkeypatch, ask, tokens_per_step):
    served = server.served["tiny"]
    monkeypatch.setattr(served, "text", replace(served.text, reasoning_format=GPT_OSS))
    server.chat.tokens_per_step = tokens_per_step
    analysis, final = "<|channel|>analysis<|message|>It is noon.<|end|>", "<|channel|>final<|message|>God dag."
    server.chat.answer = lambda request, index: [*f"{analysis}<|start|>assistant{final}".encode(), EOS]
    assert ask(sdk) == ("It is noon.", "God dag.", "stop", len(analysis))


@BOTH
@STEPS
def test_calls_of_gpt_oss_follow_its_reasoning(server, sdk, monkeypatch, ask, tokens_per_step):
    served = server.served["tiny"]
    monkeypatch.setattr(served, "text", replace(served.text, reasoning_format=GPT_OSS, tool_format=HARMONY_CALLS))
    server.chat.tokens_per_step = tokens_per_step
    analysis = "<|channel|>analysis<|message|>I call f.<|end|><|start|>assistant"
    preamble = "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
    server.chat.answer = lambda request, index: answer_text(analysis + preamble + call)
    assert ask(sdk, tools=[TOOL])[:3] == ("I call f.", "One moment.", "tool_calls")
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO, tools=[TOOL]).choices[0].message
    assert answer.tool_calls is not None and answer.tool_calls[0].type == "function"
    assert answer.tool_calls[0].function.arguments == '{"a": 1}'


def sent_events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    return events_of(client.post(path, json={"model": "tiny", "stream": True, **body}))


def test_a_response_has_its_reasoning_as_an_item(answering, sdk, client, server):
    answering(f"{THOUGHT}God dag.")
    response = sdk.responses.create(model="tiny", input="Hej", reasoning={"effort": "high"}, include=[LOGPROBS])
    reasoning, message = response.output
    assert reasoning.type == "reasoning" and reasoning.content is not None and reasoning.summary == []
    assert [part.text for part in reasoning.content] == ["It is noon."] and response.output_text == "God dag."
    assert message.type == "message" and message.content[0].type == "output_text"
    assert "".join(each.token for each in message.content[0].logprobs or ()) == "\n\nGod dag."
    assert response.reasoning is not None and response.reasoning.effort == "high"
    assert response.usage is not None and response.usage.output_tokens_details.reasoning_tokens == 28

    events = sent_events(client, "/v1/responses", {"input": "Hej"})
    kinds = [each["type"].removeprefix("response.") for each in events]
    assert [kind for place, kind in enumerate(kinds) if kinds[place - 1] != kind] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    told = "".join(each["delta"] for each in events if each["type"] == "response.reasoning_text.delta")
    assert told == "It is noon."
    stored = sdk.responses.retrieve(events[-1]["response"]["id"])
    assert stored.output[0].to_dict() == events[-1]["response"]["output"][0]

    sdk.responses.create(model="tiny", input="Och nu?", previous_response_id=stored.id)
    assert prompt_of(server).endswith("<think>It is noon.</think>God dag.<|user|>Och nu?<|assistant|>")
    sdk.responses.create(model="tiny", input="Hej", reasoning={"effort": "none"})
    assert prompt_of(server).endswith("</think>\n\n")


LOGPROBS: Any = "message.output_text.logprobs"


def test_a_response_that_ends_within_its_reasoning_is_incomplete(answering, sdk):
    answering(f"<think>{'It is noon. ' * 4}</think>God dag.")
    response = sdk.responses.create(model="tiny", input="Hej", max_output_tokens=20)
    assert response.status == "incomplete" and [item.type for item in response.output] == ["reasoning"]


def test_a_message_has_its_reasoning_as_a_thinking_block(answering, client, server):
    answering(f"{THOUGHT}God dag.")
    with server.claude() as claude:
        ask: Any = {"model": "tiny", "max_tokens": 99, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        message = claude.messages.create(messages=HELLO, **ask)
        thinking, text = message.content
        assert thinking.type == "thinking" and thinking.thinking == "It is noon." and thinking.signature
        assert text.type == "text" and text.text == "God dag."
        with claude.messages.stream(messages=HELLO, **ask) as stream:
            assert [block.to_dict() for block in stream.get_final_message().content] == [
                block.to_dict() for block in message.content
            ]
        history = [*HELLO, {"role": "assistant", "content": [block.to_dict() for block in message.content]}, *HELLO]
        claude.messages.create(messages=history, **ask)
        assert "<|assistant|><think>It is noon.</think>God dag.<|user|>" in prompt_of(server)
        ask["thinking"] = {"type": "disabled"}
        claude.messages.create(messages=HELLO, **ask)
        assert prompt_of(server).endswith("</think>\n\n")
    events = sent_events(client, "/v1/messages", {"messages": HELLO, "max_tokens": 99})
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert list(dict.fromkeys(deltas)) == ["thinking_delta", "signature_delta", "text_delta"]


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
async def test_pydantic_ai_reads_the_reasoning_once(answering, server, kind):
    import pydantic_ai
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider

    answering(f"{THOUGHT}God dag.")
    model = getattr(models, kind)("tiny", provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="none"))
    agent = pydantic_ai.Agent(model)
    whole = await agent.run("Hej")
    async with agent.run_stream("Hej") as stream:
        assert await stream.get_output() == whole.output == "God dag."
        messages = [whole.all_messages()[-1], stream.all_messages()[-1]]
    for message in messages:
        thoughts = [str(part.content) for part in message.parts if part.part_kind == "thinking"]
        assert "".join(thoughts) in ("It is noon.", "")
        assert thoughts or kind == "OpenAIResponsesModel"  # which reads summaries only
    await agent.run("Och nu?", message_history=whole.all_messages())


@BOTH
def test_tags_that_are_special_tokens_are_seen_and_not_shown(server, sdk, monkeypatch, ask):
    tags = ("<|system|>",), ("<|user|>",)
    kind = replace(QWEN3, starts=tags[0], ends=tags[1], markers=tags[0] + tags[1])
    kind = replace(kind, splitter=partial(TagSplitter, starts=tags[0], ends=tags[1]))
    served = server.served["tiny"]
    monkeypatch.setattr(served, "text", replace(served.text, reasoning_format=kind))
    server.chat.answer = lambda request, index: [SYSTEM, *b"noon", USER, *b"Hej", ASSISTANT, EOS]
    assert ask(sdk) == ("noon", "Hej", "stop", 6)


def test_a_wrong_effort_is_refused(client):
    for path, body, param in (
        ("/v1/chat/completions", {"messages": HELLO, "reasoning_effort": "lots"}, "reasoning_effort"),
        ("/v1/responses", {"input": "Hej", "reasoning": {"effort": "lots"}}, "reasoning.effort"),
    ):
        answer = client.post(path, json={"model": "tiny", **body})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_answers_have_it_as_thinking(server, answering, client, stream):
    def ask(**fields: Any) -> tuple[str, str]:
        body = {"model": "tiny", "messages": HELLO, "stream": stream, **fields}
        messages = [json.loads(line)["message"] for line in client.post("/api/chat", json=body).text.splitlines()]
        return tuple("".join(each.get(name, "") for each in messages) for name in ("thinking", "content"))

    answering(f"{THOUGHT}God dag.")
    assert ask() == ask(think=True) == ask(think="low") == ("It is noon.", "God dag.")
    assert prompt_of(server).endswith("<|assistant|>")
    answering("God dag.")
    assert ask(think=False) == ("", "God dag.") and prompt_of(server).endswith("</think>\n\n")
