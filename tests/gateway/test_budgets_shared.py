"""Budgets that two gateways share over one database and a real Redis; `tests/limits` shows that they are exact."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from asking import CHAT, chat
from kvarn.answers.stages.ledger import LedgerStage
from kvarn.config.platform import LimitsConfig, MeteringConfig, StoreConfig
from kvarn.metering.service import Metering

PROMPT = 4
LIMIT = 1200


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
    budgets = metering_of(server).budgets
    owner = server.authenticator.principals["shared"].owner
    return bool(budgets.limits([owner.organization_id], 1, 1, time.time())[1])


def metering_of(server: Any) -> Metering:
    return next(stage.metering for stage in server.gateway.steps.stages if isinstance(stage, LedgerStage))


def _ask_once(server: Any, max_tokens: int, choices: int = 1) -> httpx.Response:
    with server.client("shared") as client:
        return client.post(CHAT, json=chat(max_tokens=max_tokens, n=choices))


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
