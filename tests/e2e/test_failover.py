"""Engine processes that are killed and stopped under load: every answer is whole, and the one that nobody disturbed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvarn
from profiles import effort

REPLICAS = 2
KILLS = effort(2, 300)
ADAPTERS = Path(kvarn.__file__).parent / "assets" / "adapters"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "sky": {"enum": ["clear", "cloudy"]}},
    "required": ["city", "sky"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}


def question(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What does a router do? ({number})"}]


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """Requests of all kinds whose answers do not depend on chance. The ones without a seed are greedy."""
    chat, long = "/v1/chat/completions", {"max_tokens": 300, "ignore_eos": True}
    named = {"json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}, "type": "json_schema"}
    forced = {"type": "function", "function": {"name": "get_weather"}}
    return [
        (chat, {"messages": question(1), "temperature": 0, **long}),
        (chat, {"messages": question(2), "temperature": 1, "seed": 5, "top_p": 0.9, **long}),
        (chat, {"messages": question(3), "temperature": 1, "seed": 6, "n": 4, "logprobs": True, **long}),
        (chat, {"messages": question(4), "temperature": 1, "seed": 7, "response_format": named, "max_tokens": 200}),
        (chat, {"messages": question(5), "temperature": 0, "tools": [TOOL], "tool_choice": forced}),
        (chat, {"messages": question(6), "model": "pirate", "temperature": 0, **long}),
        ("/v1/completions", {"prompt": "one two three one two three one", "temperature": 0, "logprobs": 1, **long}),
        ("/v1/completions", {"prompt": ["a", "b c"], "seed": 9, "frequency_penalty": 0.5, "n": 2, **long}),
    ]


async def read(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[Any, Any] | None:
    """What a streamed answer says, choice by choice, and its usage; None where it was refused for want of an engine."""
    choices: dict[int, list[Any]] = {}
    usage: dict[str, Any] = {}
    options = {"model": "kvarn-demo", "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", path, json=options | body) as answer:
        if answer.status_code == 503 and b"model_not_ready" in await answer.aread():
            return None  # every engine was down: it never began
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                found = choices.setdefault(choice["index"], ["", "", [], None])
                delta = choice.get("delta", {})
                found[0] += delta.get("content") or choice.get("text") or ""
                for call in delta.get("tool_calls") or ():
                    found[1] += (call["function"].get("name") or "") + call["function"]["arguments"]
                if choice.get("logprobs"):
                    found[2] += choice["logprobs"].get("content") or choice["logprobs"].get("tokens")
                found[3] = choice["finish_reason"] or found[3]
    # The gateway ends a forced call itself: the end token may have come by then, or not.
    counted = usage["prompt_tokens"], None if "tools" in body else usage["completion_tokens"]
    return sorted((index, *found) for index, found in choices.items()), counted


@pytest.fixture(scope="module")
def fleet(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    configuration = {
        "models": [
            {
                "name": "kvarn-demo",
                "path": "kvarn-demo",
                "replicas": REPLICAS,
                "kv_cache_gib": 0.1,
                "threads": 1,
                "adapters": [{"name": "pirate", "path": str(ADAPTERS / "pirate")}],
                "failover": {"max_losses": 10},
            }
        ],
        "replica": {
            "heartbeat_interval_s": 0.1,
            "heartbeat_timeout_s": 1.0,
            "restart_backoff_s": 0.05,
            "max_restart_backoff_s": 0.5,
        },
        "gateway": {"port": 0, "drain_timeout_s": 2},
    }
    with serving(tmp_path_factory.mktemp("fleet"), configuration) as server:
        yield server


def engines(server: Any) -> list[int]:
    """The processes that run now, as the log names them."""
    found = dict(re.findall(r"the engine is ready.* replica=(\S+) pid=(\d+)", server.log.read_text()))
    return [int(pid) for pid in found.values()]


async def disturb(server: Any, draw: random.Random, kills: int) -> None:
    """Stop for longer than a heart may be silent, or kill, one engine after another."""
    for number in range(kills):
        await asyncio.sleep(draw.uniform(0.05, 0.5))
        while not await asyncio.to_thread(server.is_ready):  # noqa: ASYNC110  another process
            await asyncio.sleep(0.05)
        pid = draw.choice(engines(server))
        with suppress(ProcessLookupError):  # it was killed a moment ago
            os.kill(pid, signal.SIGKILL if number % 3 else signal.SIGSTOP)


@pytest.mark.chaos
def test_no_answer_is_lost_or_other_when_engines_are_killed_and_hang(fleet):
    async def main() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=fleet.url, timeout=300, limits=limits) as client:
            wanted = [await read(client, *body) for body in bodies()]
            assert None not in wanted

            disturbing = asyncio.create_task(disturb(fleet, random.Random(1), KILLS))

            async def one(number: int) -> int:
                rounds = 0
                while not (disturbing.done() and rounds):
                    found = await read(client, *bodies()[number])
                    assert found in (wanted[number], None)
                    rounds += found is not None
                    if found is None:
                        await asyncio.sleep(0.1)
                return rounds

            rounds = await asyncio.gather(*[one(number % len(bodies())) for number in range(2 * len(bodies()))])
            assert min(rounds) > 0
            await disturbing

    asyncio.run(main())
    moved = re.search(
        r'^kvarn_failover_seconds_count\{model="kvarn-demo"\} ([\d.]+)', fleet.http.get("/metrics").text, re.M
    )
    assert moved is not None and float(moved[1]) >= KILLS / 2, "requests were running on what was killed"
    fleet.wait_until(fleet.is_ready, "an engine to be back", 60)
    fleet.wait_until(fleet.idle, "every block to come back", 60)
