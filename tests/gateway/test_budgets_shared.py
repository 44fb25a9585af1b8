"""Budgets that two gateways share over one database and a real Redis: not a token above, whoever asks where."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from asking import CHAT, chat
from fake_replica import EOS
from kvarn.answers.stages.budgets import BudgetStage
from kvarn.config.platform import LimitsConfig, MeteringConfig, StoreConfig
from kvarn.metering.service import Metering

CLIENTS = 200
PROMPT = 4
LIMIT = 1200
LENGTHS = (1, 6, 11, 40)


@pytest.fixture
def gateways(
    serve: Any, tmp_path: Path, wait_for: Any, database_url: str, own_redis: Any
) -> Iterator[Callable[..., list[Any]]]:
    """Two gateways; one tenant, with a budget, known to both by the token `shared`."""
    with ExitStack() as opened:

        def make(**limits: Any) -> list[Any]:
            redis_url = f"redis://127.0.0.1:{own_redis.port}/0"

            def prepare(server: Any) -> None:
                server.configure(data_dir=str(tmp_path / f"data-{id(server)}"))
                server.chat.answer = _answer

            config = {
                "store": StoreConfig(url=database_url, timeout_s=30),
                "limits": LimitsConfig(**{"redis_url": redis_url, "timeout_s": 20.0, **limits}),
                "metering": MeteringConfig(budget_refresh_s=0.1),
            }
            servers = [opened.enter_context(serve(prepare, config=config)) for _ in range(2)]
            with servers[0].add_tenant("shared", key_id="key_1") as admin:
                budget = {"unit": "tokens", "period": "total", "hard_limit": LIMIT}
                admin.post("/v1/organization/budgets", json=budget).raise_for_status()
            servers[1].authenticator.principals["shared"] = servers[0].authenticator.principals["shared"]
            for server in servers:
                wait_for(lambda server=server: knows_budgets(server), "the budget to be known")
            return servers

        make.stop = opened.close
        yield make


def knows_budgets(server: Any) -> bool:
    return bool(metering_of(server).budgets.all_statuses(time.time()))


def metering_of(server: Any) -> Metering:
    return next(stage.metering for stage in server.gateway.steps.stages if isinstance(stage, BudgetStage))


def _ask_once(server: Any, max_tokens: int, choices: int = 1) -> httpx.Response:
    with server.client("shared") as client:
        return client.post(CHAT, json=chat(max_tokens=max_tokens, n=choices))


def _answer(request: Any, index: int) -> list[int]:
    """As long as it may be; the longest end at once, and what was reserved for them is given back."""
    return [EOS] if request.sampling.max_tokens == max(LENGTHS) else [120] * request.sampling.max_tokens


@pytest.mark.thorough
def test_two_hundred_clients_of_two_gateways_never_spend_more_than_the_budget(gateways, wait_for):
    servers = gateways()
    before = _spent(servers[0])
    counted, codes = [0], set[str]()

    async def one(client: httpx.AsyncClient, number: int) -> None:
        dice = random.Random(number)
        for _ in range(3):
            body = chat(max_tokens=dice.choice(LENGTHS))
            answer = await client.post(servers[number % 2].url + CHAT, json=body)
            if answer.status_code == 200:
                counted.append(answer.json()["usage"]["total_tokens"])
            else:
                assert answer.status_code == 429, answer.text
                codes.add(answer.json()["error"]["code"])
                return

    async def main() -> None:
        # Apart: one pool of 200 connections looks at all of them for each request.
        options = {"timeout": 60, "headers": {"authorization": "Bearer shared"}, "verify": ssl.create_default_context()}
        async with AsyncExitStack() as opened:
            clients = [await opened.enter_async_context(httpx.AsyncClient(**options)) for _ in range(CLIENTS)]
            await asyncio.gather(*[one(client, number) for number, client in enumerate(clients)])

    asyncio.run(main())
    assert before + sum(counted) <= LIMIT and codes <= {"insufficient_quota", "budget_reserved"} and codes
    deadline = time.monotonic() + 30
    while (last := _ask_once(servers[0], 1)).json().get("error", {}).get("code") != "insufficient_quota":
        assert time.monotonic() < deadline, last.text
        if last.status_code == 200:
            counted.append(last.json()["usage"]["total_tokens"])
    total = before + sum(counted)
    assert LIMIT - PROMPT - 1 < total <= LIMIT  # what is left is too little for the smallest request
    wait_for(lambda: _spent(servers[1]) == total, "the ledger to have it all")


def _spent(server: Any) -> int:
    with server.client("shared") as client:
        (budget,) = client.get("/v1/organization/budgets").json()["data"]
    return int(budget["spent"])


def test_a_request_that_may_come_to_more_than_is_left_is_told_how_much_that_is(gateways):
    servers = gateways()
    refused = _ask_once(servers[0], 500 - PROMPT, choices=3)
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false" and f"{LIMIT} tokens left" in error["message"]
    assert _ask_once(servers[0], 6).status_code == 200


def test_a_redis_that_is_away_closes_budgets_where_the_configuration_says_so(gateways, own_redis):
    servers = gateways(when_away="closed", timeout_s=2.0)
    own_redis.kill()
    for server in servers:
        refused = _ask_once(server, 6)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "budgets_unavailable"


def test_a_gateway_that_is_stopped_leaves_nothing_held(gateways, own_redis):
    servers = gateways()
    for server in servers:
        metering_of(server)._budgets_read = float("inf")  # not read again while it runs
    assert _ask_once(servers[0], 6).status_code == 200
    with redis.Redis(port=own_redis.port) as client:
        (held,) = client.keys("kvarn:budgets:{*}:*:leases")
        assert client.zcard(held) == 1
        gateways.stop()
        assert client.zcard(held) == 0 and len(client.client_list()) == 1
