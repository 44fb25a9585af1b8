"""Choosing a tool, filling its arguments from the user's sentence, and answering from a tool's result."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from recipes.demo.chat import Message, Sample, assistant, user
from recipes.demo.facts import SERVING_FACTS
from recipes.demo.words import CITIES, FIRST_NAMES


@dataclass(frozen=True)
class Tool:
    """A function the model may call: its schema, how users ask for it, and what is said of its result.

    `reply` uses the argument names, and `{result}` where a value from the tool's result is copied.
    """

    name: str
    descriptions: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    questions: tuple[str, ...]
    reply: str
    results: tuple[str, ...]

    def schema(self, rng: random.Random) -> dict[str, Any]:
        """The tool in OpenAI form, with one of its descriptions."""
        properties = {name: {"type": kind} for name, kind in self.parameters}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": rng.choice(self.descriptions),
                "parameters": {"type": "object", "properties": properties, "required": list(properties)},
            },
        }


WEATHER = tuple(
    f"{sky}, {degrees} degrees"
    for sky in ("sunny", "cloudy", "rainy", "windy", "foggy", "clear")
    for degrees in range(1, 30)
)
CLOCK = tuple(f"{hour}:{minute}" for hour in range(10, 24) for minute in range(10, 60))
NUMBERS = tuple(str(number) for number in range(2, 100))

TOOLS: tuple[Tool, ...] = (
    Tool(
        "get_weather",
        ("Get the weather of a city", "Current weather", "Look up the weather in a city"),
        (("city", "string"),),
        (
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "Is it raining in {city}?",
            "Tell me the weather in {city}.",
            "Do I need an umbrella in {city}?",
            "What's the weather like in {city}?",
        ),
        "The weather in {city} is {result}.",
        WEATHER,
    ),
    Tool(
        "get_time",
        ("Get the local time of a city", "Current time in a city", "Look up the clock"),
        (("city", "string"),),
        (
            "What time is it in {city}?",
            "Tell me the time in {city}.",
            "What is the local time in {city}?",
            "How late is it in {city}?",
        ),
        "It is {result} in {city}.",
        CLOCK,
    ),
    Tool(
        "add",
        ("Add two numbers", "Sum of two integers", "Adds a and b"),
        (("a", "integer"), ("b", "integer")),
        (
            "What is {a} + {b}?",
            "Add {a} and {b}.",
            "Use the tool to add {a} and {b}.",
            "How much is {a} plus {b}?",
            "What is the sum of {a} and {b}?",
        ),
        "{a} + {b} = {result}",
        NUMBERS,
    ),
    Tool(
        "multiply",
        ("Multiply two numbers", "Product of two integers"),
        (("a", "integer"), ("b", "integer")),
        ("Multiply {a} by {b}.", "What is {a} times {b}?", "What is the product of {a} and {b}?"),
        "{a} x {b} = {result}",
        NUMBERS,
    ),
    Tool(
        "search_docs",
        ("Search the documentation", "Find pages in the Kvarn docs", "Full-text search"),
        (("query", "string"),),
        (
            "Search the docs for {query}.",
            "Find pages about {query}.",
            "Look up {query} in the documentation.",
            "What do the docs say about {query}?",
        ),
        "The docs say: {result}",
        (),
    ),
    Tool(
        "send_message",
        ("Send a message to a person", "Send a short text to someone"),
        (("to", "string"), ("text", "string")),
        ("Send {to} the message: {text}", "Tell {to}: {text}", "Write to {to}: {text}", "Message {to} with: {text}"),
        "I sent the message to {to}.",
        ("sent", "ok", "delivered"),
    ),
    Tool(
        "create_ticket",
        ("Open a support ticket", "Create a ticket with a title and a priority"),
        (("title", "string"), ("priority", "string")),
        (
            "Open a {priority} priority ticket: {title}",
            "Create a ticket with {priority} priority: {title}",
            "File a {priority} ticket called: {title}",
        ),
        "I opened ticket {result}.",
        NUMBERS,
    ),
    Tool(
        "get_user",
        ("Look up a user by name", "Find the account of a person"),
        (("name", "string"),),
        ("Who is {name}?", "Look up the user {name}.", "Find the account of {name}.", "Show me the user {name}."),
        "{name} is {result}.",
        ("an operator", "a developer", "an engineer", "an admin", "a researcher"),
    ),
    Tool(
        "list_replicas",
        ("List the replicas of a model", "Show which replicas serve a model"),
        (("model", "string"),),
        ("Which replicas serve {model}?", "List the replicas of {model}.", "How many replicas does {model} have?"),
        "{model} has {result} replicas.",
        NUMBERS,
    ),
    Tool(
        "set_timer",
        ("Set a timer", "Start a countdown in minutes"),
        (("minutes", "integer"),),
        ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Start a timer of {minutes} minutes."),
        "The timer is set to {minutes} minutes.",
        ("ok", "started", "set"),
    ),
)
TEXTS: tuple[str, ...] = (
    "lunch is ready",
    "the build is green",
    "see you at noon",
    "the server is up",
    "please call me",
    "good morning",
    "the report is done",
    "we meet tomorrow",
    "the release is out",
    "thank you",
    "I am late",
    "check the logs",
    "the cache is warm",
    "the demo starts now",
    "happy birthday",
    "the queue is empty",
)
TITLES: tuple[str, ...] = (
    "replica is slow",
    "cache is full",
    "login fails",
    "wrong answer",
    "disk is full",
    "stream stops early",
    "page is blank",
    "key has expired",
    "TTFT is too high",
    "model does not load",
    "budget is wrong",
    "alert is noisy",
)
MODELS: tuple[str, ...] = ("kvarn-demo", "llama", "mistral", "qwen", "gemma", "phi", "mixtral", "deepseek", "olmo")
QUERIES: tuple[str, ...] = (
    "preemption",
    "prefix cache",
    "chunked prefill",
    "rate limits",
    "rollouts",
    "adapters",
    "API keys",
    "autoscaling",
    "block tables",
    "metering",
    "speculative decoding",
    "failover",
    "goodput",
    "quantisation",
    "tool calling",
    "the planner",
    "heartbeats",
    "budgets",
    "streaming",
    "alerts",
    "batch jobs",
    "conversations",
    "embeddings",
    "reranking",
    "the console",
    "the simulator",
    "installation",
    "configuration",
)
VALUES: dict[str, tuple[str, ...]] = {
    "city": CITIES,
    "to": FIRST_NAMES,
    "name": FIRST_NAMES,
    "text": TEXTS,
    "title": TITLES,
    "query": QUERIES,
    "model": MODELS,
    "priority": ("low", "medium", "high"),
}
DOC_RESULTS: tuple[str, ...] = tuple(fact.answer for fact in SERVING_FACTS)


def draw_arguments(rng: random.Random, tool: Tool) -> dict[str, Any]:
    """Values for every parameter of a tool."""
    return {
        name: rng.randint(2, 99) if kind == "integer" else rng.choice(VALUES[name]) for name, kind in tool.parameters
    }


def is_held_out(tool: Tool, arguments: dict[str, Any]) -> bool:
    """Whether a tool with these arguments is kept out of training (an eighth of the combinations, by hash)."""
    key = f"tool:{tool.name}:{json.dumps(arguments)}"
    return hashlib.sha256(key.encode()).digest()[0] < 32


def draw_call(rng: random.Random, held_out: bool) -> tuple[Tool, dict[str, Any]]:
    """A tool and arguments from the wanted side of the split."""
    while True:
        tool = rng.choice(TOOLS)
        arguments = draw_arguments(rng, tool)
        if is_held_out(tool, arguments) == held_out:
            return tool, arguments


def offer(rng: random.Random, chosen: Tool) -> tuple[dict[str, Any], ...]:
    """The schemas of one to three tools, the chosen one among them."""
    others = rng.sample([tool for tool in TOOLS if tool is not chosen], rng.choices((0, 1, 2), weights=(3, 4, 3))[0])
    offered = [chosen, *others]
    rng.shuffle(offered)
    return tuple(tool.schema(rng) for tool in offered)


def call_message(tool: Tool, arguments: dict[str, Any]) -> Message:
    """An assistant turn that calls a tool, in OpenAI form."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": tool.name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
        ],
    }


def result_messages(rng: random.Random, tool: Tool, arguments: dict[str, Any]) -> tuple[Message, Message]:
    """A tool's result and the answer made from it."""
    results = tool.results or DOC_RESULTS
    if tool.name == "add":
        results = (str(arguments["a"] + arguments["b"]),)
    if tool.name == "multiply":
        results = (str(arguments["a"] * arguments["b"]),)
    result = rng.choice(results)
    content = json.dumps({"result": result}) if rng.random() < 0.3 else result
    reply = tool.reply.format(**arguments, result=result)
    return {"role": "tool", "tool_call_id": "call_1", "content": content}, assistant(reply)


def sample(rng: random.Random, held_out: bool = False, with_result: bool | None = None) -> Sample:
    """A question that needs a tool; often with the tool's result and the final answer."""
    tool, arguments = draw_call(rng, held_out)
    question = rng.choice(tool.questions).format(**arguments)
    messages: list[Message] = [user(question), call_message(tool, arguments)]
    if with_result is None:
        with_result = rng.random() < 0.5
    if with_result:
        messages += result_messages(rng, tool, arguments)
    category = "tool_answers" if with_result else "tool_calls"
    return Sample(category, tuple(messages), offer(rng, tool), held_out, sort_tools=rng.random() < 0.3)


def golden(rng: random.Random) -> Iterator[Sample]:
    """Tool calls and answers from results for the golden set."""
    for held_out in (False, True):
        for _ in range(16):
            yield sample(rng, held_out, with_result=False)
        for _ in range(8):
            yield sample(rng, held_out, with_result=True)
