"""Frameworks as a newcomer uses them, against the really started server: their default tools, a tool loop, a prompt
that is too long. None of them may talk to anything but the server."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from lazy_modules import LazyModule

agents, anthropic = LazyModule("agents"), LazyModule("anthropic")
MODEL = "kvarn-demo"
RAIN = "What is the weather in Stockholm?"
RAINY = "rainy, 7 degrees"
LONG = "paged attention " * 3000
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test in which a client asks for a host other than this one: such as to send traces, or to read prices."""
    connect, getaddrinfo = socket.socket.connect, socket.getaddrinfo
    reached: list[object] = []

    def checked_connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in LOOPBACK:
            reached.append(address)
            raise OSError(f"{address} is not this machine")
        connect(self, address)

    def checked_getaddrinfo(host: Any, *args: Any, **more: Any) -> Any:
        if host not in (None, *LOOPBACK):
            reached.append(host)
            raise OSError(f"{host} is not this machine")
        return getaddrinfo(host, *args, **more)

    monkeypatch.setattr(socket.socket, "connect", checked_connect)
    monkeypatch.setattr(socket, "getaddrinfo", checked_getaddrinfo)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    agents.set_tracing_disabled(True)
    yield
    assert not reached


@pytest.fixture
def asked() -> list[str]:
    """The cities that a tool was called for."""
    return []


@pytest.mark.parametrize("kind", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_agents_sdk_runs_its_default_tools(server, asked, kind, stream):
    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the weather of a city"""
        asked.append(city)
        return RAINY

    assert get_weather.strict_json_schema
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        settings = agents.ModelSettings(temperature=0)
        model = getattr(agents, kind)(model=MODEL, openai_client=client)
        agent = agents.Agent(name="Weather", model=model, model_settings=settings, tools=[get_weather])
        if stream:
            streamed = agents.Runner.run_streamed(agent, RAIN)
            events = [event async for event in streamed.stream_events()]
            assert len(events) > 5
            answer = streamed.final_output
        else:
            answer = (await agents.Runner.run(agent, RAIN)).final_output
    assert asked == ["Stockholm"] and RAINY in answer


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
async def test_pydantic_ai_runs_its_default_tools(server, asked, kind):
    import pydantic_ai
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider

    model = getattr(models, kind)(MODEL, provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="none"))
    agent = pydantic_ai.Agent(model, model_settings={"temperature": 0})

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather of a city"""
        asked.append(city)
        return RAINY

    whole = await agent.run(RAIN)
    assert asked == ["Stockholm"] and RAINY in whole.output
    async with agent.run_stream(RAIN) as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True)]
    assert asked == ["Stockholm"] * 2 and RAINY in "".join(pieces)
    more = await agent.run("What is a KV cache?", message_history=whole.all_messages())
    assert more.output


@pytest.mark.parametrize("responses", [False, True])
@pytest.mark.parametrize("strict", [None, True])
def test_langchain_runs_its_tools(server, asked, responses, strict):
    from langchain_core.exceptions import ContextOverflowError
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def get_weather(city: str) -> str:
        """Get the weather of a city"""
        asked.append(city)
        return RAINY

    model = ChatOpenAI(
        model=MODEL, base_url=f"{server.url}/v1", api_key="none", temperature=0, use_responses_api=responses
    )
    bound = model.bind_tools([get_weather], strict=strict)
    messages: list[Any] = [HumanMessage(RAIN)]
    messages.append(call := bound.invoke(messages))
    messages += [get_weather.invoke(each) for each in call.tool_calls]
    answer = bound.invoke(messages)
    assert asked == ["Stockholm"] and RAINY in answer.text
    assert "".join(chunk.text for chunk in bound.stream(messages)) == answer.text
    with pytest.raises(ContextOverflowError):
        model.invoke(LONG)


def test_langchain_embeds(server):
    from langchain_openai import OpenAIEmbeddings

    # Without this LangChain sends the token ids of another model's tokenizer, which it downloads.
    options: dict[str, Any] = {"check_embedding_ctx_length": False}
    embeddings = OpenAIEmbeddings(model="minilm", base_url=f"{server.url}/v1", api_key="none", **options)
    vectors = embeddings.embed_documents(["a KV cache", "paged attention"])
    assert [len(vector) for vector in vectors] == [384, 384]


@pytest.mark.parametrize(
    ("prefix", "path"),
    [("openai", "/v1"), ("hosted_vllm", "/v1"), ("text-completion-openai", "/v1"), ("anthropic", "")],
)
def test_litellm_knows_that_a_prompt_is_too_long(server, prefix, path):
    litellm = importlib.import_module("litellm")  # now, since it reads the environment
    options: dict[str, Any] = {"model": f"{prefix}/{MODEL}", "api_base": f"{server.url}{path}", "api_key": "none"}
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": LONG}], **options)
    answer = litellm.completion(messages=[{"role": "user", "content": "What is a KV cache?"}], **options)
    assert answer.choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(("prefix", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_litellm_runs_a_tool(server, prefix, path):
    litellm = importlib.import_module("litellm")
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": "Get the weather of a city", "parameters": schema}
    options: dict[str, Any] = {
        "model": f"{prefix}/{MODEL}",
        "api_base": f"{server.url}{path}",
        "api_key": "none",
        "temperature": 0,
        "tools": [{"type": "function", "function": function}],
    }
    messages: list[Any] = [{"role": "user", "content": RAIN}]
    messages.append(litellm.completion(messages=messages, **options).choices[0].message)
    (call,) = messages[-1].tool_calls
    assert "Stockholm" in call.function.arguments
    messages.append({"role": "tool", "tool_call_id": call.id, "content": RAINY})
    assert RAINY in litellm.completion(messages=messages, **options).choices[0].message.content


def test_anthropics_tool_runner_runs_a_tool(server, asked):
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather of a city"""
        asked.append(city)
        return RAINY

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        question: Any = {"role": "user", "content": RAIN}
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=8192, tools=[get_weather], messages=[question], extra_body={"temperature": 0}
        )
        (block,) = runner.until_done().content
    assert asked == ["Stockholm"] and block.type == "text" and RAINY in block.text
