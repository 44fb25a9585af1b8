"""Structured output of the real demo model through OpenAI's client: its own helpers, and what comes back."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

Short = Annotated[str, Field(max_length=12)]
ASKED: Any = [{"role": "user", "content": "Tell me of a person in Stockholm."}]
MODEL: dict[str, Any] = {"model": "kvarn-demo", "max_tokens": 400}


class Step(BaseModel):
    explanation: Short
    output: Short


class Person(BaseModel):
    name: Short
    age: Annotated[int, Field(ge=0, le=120)]
    colour: Literal["red", "blue"]
    nickname: Short | None
    steps: Annotated[list[Step], Field(max_length=2)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_chat_parse_gives_an_object_of_the_class(sdk: openai.OpenAI, temperature: float) -> None:
    for seed in range(3):
        answer = sdk.chat.completions.parse(
            messages=ASKED, response_format=Person, temperature=temperature, seed=seed, **MODEL
        )
        assert answer.choices[0].finish_reason == "stop"
        assert isinstance(answer.choices[0].message.parsed, Person)


def test_responses_parse_gives_an_object_of_the_class(sdk: openai.OpenAI) -> None:
    answer = sdk.responses.parse(model="kvarn-demo", input="Who?", text_format=Person, max_output_tokens=400)
    assert isinstance(answer.output_parsed, Person) and answer.status == "completed"


def test_a_stream_carries_the_same_text(sdk: openai.OpenAI) -> None:
    options: dict[str, Any] = {"messages": ASKED, "response_format": Person, "temperature": 0.7, "seed": 5, **MODEL}
    whole = sdk.chat.completions.parse(**options).choices[0].message.content
    with sdk.chat.completions.stream(**options) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole
    assert isinstance(final.choices[0].message.parsed, Person)


def test_strict_tools_are_called_with_arguments_of_their_schema(sdk: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Step, name="note", description="Note a step")
    for choice in ("required", {"type": "function", "function": {"name": "note"}}):
        answer = sdk.chat.completions.parse(messages=ASKED, tools=[tool], tool_choice=choice, temperature=1.0, **MODEL)
        calls = answer.choices[0].message.tool_calls or []
        assert calls and all(isinstance(call.function.parsed_arguments, Step) for call in calls)


def test_vllm_fields_are_kept_to_in_chat_and_completions(sdk: openai.OpenAI) -> None:
    for body, right in (
        ({"structured_outputs": {"choice": ["positive", "negative"]}}, "positive|negative"),
        ({"structured_outputs": {"regex": "[A-Z]{2}-[0-9]{3}"}}, "[A-Z]{2}-[0-9]{3}"),
        ({"structured_outputs": {"grammar": 'root ::= ("a" | "b")  " end"'}}, "[ab] end"),
        ({"guided_json": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}}, r"\[([12](, [12]){0,2})?\]"),
    ):
        chat = sdk.chat.completions.create(messages=ASKED, n=2, extra_body=body, **MODEL)
        text = sdk.completions.create(prompt=["It is ", "So"], extra_body=body, **MODEL)
        for found in [choice.message.content for choice in chat.choices] + [choice.text for choice in text.choices]:
            assert re.fullmatch(right, found or ""), found


def test_an_answer_that_is_cut_off_is_the_beginning_of_a_valid_one(sdk: openai.OpenAI) -> None:
    options: dict[str, Any] = {"messages": ASKED, "response_format": Person, "temperature": 0, "seed": 1}
    whole = sdk.chat.completions.parse(**options, **MODEL).choices[0].message.content or ""
    options["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": "p", "schema": Person.model_json_schema()},
    }
    cut = sdk.chat.completions.create(model="kvarn-demo", max_tokens=9, **options).choices[0]
    assert cut.finish_reason == "length" and cut.message.content
    json.loads(whole)


def test_a_grammar_that_only_the_engine_can_refuse_is_a_400_and_the_server_goes_on(
    sdk: openai.OpenAI, server: Any
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        sdk.chat.completions.create(messages=ASKED, extra_body={"guided_grammar": "start: <[99999]>"}, **MODEL)
    assert "cannot be enforced" in error.value.message
    with pytest.raises(openai.BadRequestError):  # found out on the way
        sdk.chat.completions.create(messages=ASKED, extra_body={"guided_grammar": 'start: "a" b\nb: b "x"'}, **MODEL)
    http: httpx.Client = server.http
    assert http.get("/ready").status_code == 200
    assert sdk.chat.completions.create(messages=ASKED, model="kvarn-demo", max_tokens=3).choices
