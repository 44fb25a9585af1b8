"""Ollama's clients as their users write them, against the really started server: chat, tools, JSON, vectors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lazy_modules import LazyModule

ollama = LazyModule("ollama")
MODEL, VECTORS = "kvarn-demo", "minilm"
RAIN = "What is the weather in Stockholm?"
RAINY = "rainy, 7 degrees"
GREEDY = {"temperature": 0}


def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: Its name.
    """
    return RAINY


def test_the_official_client_runs_a_tool(server):
    client = ollama.Client(server.url)
    messages: list[Any] = [{"role": "user", "content": RAIN}]
    asked = client.chat(MODEL, messages, tools=[get_weather], options=GREEDY)
    (call,) = asked.message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Stockholm"})
    messages += [asked.message, {"role": "tool", "tool_name": "get_weather", "content": RAINY}]
    answer = client.chat(MODEL, messages, tools=[get_weather], options=GREEDY)
    assert RAINY in (answer.message.content or "")


def test_the_official_client_asks_for_json(server):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    client = ollama.Client(server.url)
    for raw in (False, True):
        answer = client.generate(MODEL, "Say a number.", format=schema, raw=raw, options={**GREEDY, "num_predict": 60})
        assert isinstance(json.loads(answer.response)["n"], int)


def test_langchain_runs_its_tools(server):
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_ollama import ChatOllama

    asked: list[str] = []

    @tool("get_weather")
    def weather(city: str) -> str:
        """Get the weather of a city"""
        asked.append(city)
        return RAINY

    model = ChatOllama(model=MODEL, base_url=server.url, temperature=0, validate_model_on_init=True)
    bound = model.bind_tools([weather])
    messages: list[Any] = [HumanMessage(RAIN)]
    messages.append(call := bound.invoke(messages))
    messages.append(weather.invoke(call.tool_calls[0]))
    answer = bound.invoke(messages)
    assert asked == ["Stockholm"] and RAINY in str(answer.content)
    assert call.usage_metadata is not None and call.usage_metadata["output_tokens"] > 0
    assert "".join(str(piece.content) for piece in bound.stream(messages)) == answer.content


def test_langchain_embeds(server):
    from langchain_ollama import OllamaEmbeddings

    vectors = OllamaEmbeddings(model=VECTORS, base_url=server.url).embed_documents(["a cat", "a dog"])
    assert [len(vector) for vector in vectors] == [384, 384]
    assert sum(x * x for x in vectors[0]) == pytest.approx(1, abs=1e-3)
