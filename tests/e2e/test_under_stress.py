"""Many clients, clients that leave, and an engine that dies: the really started server keeps its promises."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

LONG: dict[str, Any] = {"model": "kvarn-demo", "max_tokens": 1500, "extra_body": {"ignore_eos": True}}


def question(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_two_hundred_streams_at_once_lose_nothing_and_leak_no_block(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as sdk:

        async def one(number: int) -> tuple[int, int, str | None]:
            stream = await sdk.chat.completions.create(
                model="kvarn-demo",
                messages=question(f"What is {number} plus {number}?"),
                stream=True,
                stream_options={"include_usage": True},
                max_tokens=4 + number % 8,
                seed=number,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
            received, counted, reason = 0, 0, None
            async for chunk in stream:
                for choice in chunk.choices:
                    received += len(choice.model_dump().get("token_ids") or [])
                    reason = choice.finish_reason or reason
                counted = chunk.usage.completion_tokens if chunk.usage else counted
            return received, counted, reason

        results = await asyncio.gather(*[one(number) for number in range(200)])
    assert results == [(4 + number % 8, 4 + number % 8, "length") for number in range(200)]
    server.wait_until(server.idle, "every block to come back")


def test_clients_that_leave_give_their_blocks_back(server, sdk):
    streams = [sdk.chat.completions.create(messages=question(f"Count to {i}."), stream=True, **LONG) for i in range(4)]
    for stream in streams:
        next(iter(stream))
    assert server.capacity()["running"] > 0
    for stream in streams:
        stream.close()
    server.wait_until(server.idle, "the blocks of the clients that left")
    with pytest.raises(openai.APITimeoutError):  # one that is not streaming leaves too
        sdk.with_options(timeout=0.1).chat.completions.create(messages=question("Count on."), **LONG)
    server.wait_until(server.idle, "the blocks of the client that gave up")
