"""Two listening gateways over one Redis, two hundred clients at once; Redis killed and started again meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from asking import CHAT, chat
from fake_replica import EOS
from kvarn.config.platform import LimitsConfig
from kvarn.store.owner import LimitRule
from profiles import thorough

CLIENTS = 200
PROMPT = 4
LIMIT = 1500
LENGTHS = (1, 6, 11, 16)
"""Of `max_tokens`: with the prompt, all orders are multiples of five."""


@pytest.fixture
def gateways(serve: Any, tmp_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """Gateways with these limits, one tenant known to all by the token `shared`."""
    with ExitStack() as opened:

        def make(number: int, rule: dict[str, int], **limits: Any) -> list[Any]:
            def prepare(server: Any) -> None:
                data = str(tmp_path / f"data-{id(server)}")
                server.configure(limits=LimitsConfig.model_validate(limits), data_dir=data)
                server.chat.answer = _answer

            servers = [opened.enter_context(serve(prepare)) for _ in range(number)]
            servers[0].add_tenant("shared").close()
            principal = servers[0].authenticator.principals["shared"]
            rules = (LimitRule(principal.organization_id, **rule),)
            for server in servers:
                server.authenticator.principals["shared"] = replace(principal, limits=rules)
            return servers

        yield make


def _answer(request: Any, index: int) -> list[int]:
    """As long as it may be; the longest end at once, and what was reserved for them is given back."""
    return [EOS] if request.sampling.max_tokens == max(LENGTHS) else [120] * request.sampling.max_tokens


async def _ask(client: httpx.AsyncClient, url: str, max_tokens: int) -> httpx.Response:
    return await client.post(url + CHAT, json=chat(max_tokens=max_tokens))


def _client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    return httpx.AsyncClient(limits=limits, timeout=60, headers={"authorization": "Bearer shared"})


async def _until_refused(client: httpx.AsyncClient, url: str, dice: random.Random, counted: list[int]) -> None:
    while (answer := await _ask(client, url, dice.choice(LENGTHS))).status_code == 200:
        counted.append(answer.json()["usage"]["total_tokens"])
    assert answer.status_code == 429, answer.text


@pytest.mark.parametrize("number", [thorough(1), 2], ids=["one in process", "two over Redis"])
def test_two_hundred_clients_get_the_limit_and_not_a_token_more(gateways, own_redis, number):
    redis_url = f"redis://127.0.0.1:{own_redis.port}/0" if number > 1 else None
    servers = gateways(number, {"tokens_per_minute": LIMIT}, redis_url=redis_url, timeout_s=20)
    counted: list[int] = []

    async def main() -> httpx.Response:
        async with _client() as client:
            urls = [servers[i % number].url for i in range(CLIENTS)]
            clients = [_until_refused(client, url, random.Random(i), counted) for i, url in enumerate(urls)]
            await asyncio.gather(*clients)
            assert sum(counted) <= LIMIT
            while (last := await _ask(client, urls[-1], 1)).status_code == 200:
                counted.append(last.json()["usage"]["total_tokens"])
            return last

    began = time.monotonic()
    last = asyncio.run(main())
    assert time.monotonic() - began < 60, "longer than the window: the machine is too slow for this test"
    assert sum(counted) == LIMIT
    assert last.headers["x-ratelimit-remaining-tokens"] == "0"


@pytest.mark.parametrize(("when_away", "expected"), [thorough("open", {200}), ("closed", {200, 503})])
def test_no_request_hangs_when_redis_is_killed_and_sharing_goes_on_when_it_is_back(
    gateways, own_redis, wait_for, when_away, expected
):
    url = f"redis://127.0.0.1:{own_redis.port}/0"
    servers = gateways(2, {"tokens_per_minute": 10**6}, redis_url=url, timeout_s=2, when_away=when_away)
    answers: list[httpx.Response] = []

    async def one(client: httpx.AsyncClient, number: int) -> None:
        for _ in range(12):
            answers.append(await _ask(client, servers[number % 2].url, 6))

    async def main() -> None:
        async with _client() as client, asyncio.timeout(120):
            asking = [asyncio.create_task(one(client, number)) for number in range(30)]
            while len(answers) < 60:  # noqa: ASYNC110  a test that polls
                await asyncio.sleep(0.01)
            own_redis.kill()
            await asyncio.gather(*asking)

    asyncio.run(main())
    assert len(answers) == 360 and {answer.status_code for answer in answers} == expected
    for answer in answers:
        if answer.status_code == 503:
            assert answer.json()["error"]["code"] == "limits_unavailable" and answer.headers["retry-after"]
    own_redis.start()
    for server in servers:
        with server.client() as client:
            wait_for(lambda client=client: "kvarn_limits_redis_away 0.0" in client.get("/metrics").text, "Redis")

    async def both() -> list[int]:
        async with _client() as client:
            both = [await _ask(client, server.url, 6) for server in servers]
            return [int(answer.headers["x-ratelimit-remaining-tokens"]) for answer in both]

    assert asyncio.run(both()) == [10**6 - 10, 10**6 - 20]
