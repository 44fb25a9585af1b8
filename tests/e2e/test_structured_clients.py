"""Structured output as the clients' own helpers ask for it: each answer is read into the caller's type by it."""

from __future__ import annotations

import importlib
import importlib.util
import re
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from lazy_modules import LazyModule

agents = LazyModule("agents")
MODEL = "kvarn-demo"
BELLA = "Return JSON with name, age and city: Bella, 30, comes from Umea."


class Bounded(BaseModel, extra="forbid"):
    """Base of types of which an answer is never long: there are no more fields than these."""


class Person(Bounded):
    """Somebody."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    city: str = Field(max_length=20)


class Weather(Bounded):
    """What a person sees of the sky."""

    sky: Literal["clear", "cloudy", "rainy"]
    degrees: int = Field(ge=-40, le=40)
    seen_by: list[Person] = Field(max_length=2)


ASK: Any = [{"role": "user", "content": BELLA}]


def test_chat_completions_parse(sdk):
    for form in (Person, Weather):
        answer = sdk.chat.completions.parse(model=MODEL, messages=ASK, response_format=form, temperature=1, seed=1)
        assert isinstance(answer.choices[0].message.parsed, form)
    person = sdk.chat.completions.parse(model=MODEL, messages=ASK, response_format=Person, temperature=0)
    assert person.choices[0].message.parsed == Person(name="Bella", age=30, city="Umea")


def test_chat_completions_stream_into_a_type(sdk):
    with sdk.chat.completions.stream(model=MODEL, messages=ASK, response_format=Weather, temperature=1) as stream:
        kinds = {event.type for event in stream}
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Weather)
    assert {"content.delta", "content.done"} <= kinds


def test_responses_parse(sdk):
    for form in (Person, Weather):
        response = sdk.responses.parse(model=MODEL, input=BELLA, text_format=form, temperature=1)
        assert isinstance(response.output_parsed, form)
    with sdk.responses.stream(model=MODEL, input=BELLA, text_format=Person, temperature=0) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
        assert stream.get_final_response().output_parsed == Person(name="Bella", age=30, city="Umea")


@pytest.mark.parametrize("kind", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
async def test_the_agents_sdk_reads_its_output_type(server, kind):
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model = getattr(agents, kind)(model=MODEL, openai_client=client)
        agent = agents.Agent(name="Weather", model=model, output_type=agents.AgentOutputSchema(Weather))
        assert isinstance((await agents.Runner.run(agent, BELLA)).final_output, Weather)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("responses", [False, True])
def test_langchain_reads_structured_output(server, method, responses):
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=f"{server.url}/v1", api_key="none", use_responses_api=responses)
    assert isinstance(model.with_structured_output(Weather, method=method).invoke(BELLA), Weather)
    strict = model.with_structured_output(Person, method=method, strict=True)
    assert isinstance(strict.invoke(BELLA), Person)


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
@pytest.mark.parametrize("output", ["NativeOutput", "ToolOutput"])
async def test_pydantic_ai_reads_its_output_type(server, kind, output):
    import pydantic_ai
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider

    model = getattr(models, kind)(MODEL, provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="none"))
    agent: Any = pydantic_ai.Agent(model, output_type=getattr(pydantic_ai, output)(Weather), retries=0)
    assert isinstance((await agent.run(BELLA)).output, Weather)


INSTRUCTOR = importlib.util.find_spec("instructor") is not None
WITHOUT_INSTRUCTOR = (
    "instructor is NOT TESTED here: it is not installed, since instructor 1.17 needs jiter<0.15 and openai 3.54 needs "
    "jiter>=0.16. What it sends is tested below."
)


@pytest.mark.skipif(not INSTRUCTOR, reason=WITHOUT_INSTRUCTOR)
@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def test_instructor_reads_its_response_model(sdk, mode):
    instructor = importlib.import_module("instructor")
    client = instructor.from_openai(sdk, mode=getattr(instructor.Mode, mode))
    answer = client.chat.completions.create(model=MODEL, messages=ASK, response_model=Weather, max_retries=0)
    assert isinstance(answer, Weather)


FUNCTION = {"name": "Weather", "description": Weather.__doc__, "parameters": Weather.model_json_schema()}
SCHEMA = {"name": "Weather", "schema": Weather.model_json_schema()}


@pytest.mark.parametrize(
    "form",
    [
        {
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "Weather"}},
        },
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    ],
    ids=["tools", "json_schema"],
)
def test_what_instructor_sends_is_answered_with_its_response_model(sdk, form):
    # The modes TOOLS and JSON_SCHEMA of instructor 1.17: its schemas are pydantic's, with $defs, and without `strict`.
    message = sdk.chat.completions.create(model=MODEL, messages=ASK, temperature=1, **form).choices[0].message
    calls = message.tool_calls
    text = calls[0].function.arguments if calls and calls[0].type == "function" else message.content
    assert text is not None and isinstance(Weather.model_validate_json(text), Weather)


OPTIONS: dict[str, Any] = {"model": MODEL, "messages": ASK}


def test_vllm_fields_are_kept_to_in_chat_and_completions(sdk):
    for body, right in (
        ({"structured_outputs": {"choice": ["positive", "negative"]}}, "positive|negative"),
        ({"structured_outputs": {"regex": "[A-Z]{2}-[0-9]{3}"}}, "[A-Z]{2}-[0-9]{3}"),
        ({"structured_outputs": {"grammar": 'root ::= ("a" | "b")  " end"'}}, "[ab] end"),
        ({"guided_json": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}}, r"\[([12](, [12]){0,2})?\]"),
    ):
        chat = sdk.chat.completions.create(n=2, extra_body=body, max_tokens=400, **OPTIONS)
        text = sdk.completions.create(prompt=["It is ", "So"], extra_body=body, model=MODEL, max_tokens=400)
        for found in [choice.message.content for choice in chat.choices] + [choice.text for choice in text.choices]:
            assert re.fullmatch(right, found or ""), found


def test_a_grammar_that_only_the_engine_can_refuse_is_a_400_and_the_server_goes_on(sdk, server):
    with pytest.raises(openai.BadRequestError) as error:
        sdk.chat.completions.create(extra_body={"guided_grammar": "start: <[99999]>"}, **OPTIONS)
    assert "cannot be enforced" in error.value.message
    with pytest.raises(openai.BadRequestError):  # found out on the way
        sdk.chat.completions.create(extra_body={"guided_grammar": 'start: "a" b\nb: b "x"'}, **OPTIONS)
    http: httpx.Client = server.http
    assert http.get("/ready").status_code == 200
    assert sdk.chat.completions.create(max_tokens=3, **OPTIONS).choices
