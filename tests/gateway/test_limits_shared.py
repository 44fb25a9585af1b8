"""Two gateways over one Redis, which is killed and started again; `tests/limits` shows that their counts are exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from asking import CHAT, chat
from kvarn.config.platform import LimitsConfig
from kvarn.store.owner import LimitRule
from profiles import thorough

RULE = {"tokens_per_minute": 10**6}


@pytest.fixture
def gateways(serve: Any, tmp_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """Two gateways with these limits, one tenant known to both by the token `shared`."""
    with ExitStack() as opened:

        def make(**limits: Any) -> list[Any]:
            def prepare(server: Any) -> None:
                server.configure(data_dir=str(tmp_path / f"data-{id(server)}"))

            config = {"limits": LimitsConfig.model_validate(limits)}
            servers = [opened.enter_context(serve(prepare, config=config)) for _ in range(2)]
            servers[0].add_tenant("shared").close()
            principal = servers[0].authenticator.principals["shared"]
            for server in servers:
                limited = replace(principal, limits=(LimitRule(principal.organization_id, **RULE),))
                server.authenticator.principals["shared"] = limited
            return servers

        yield make


def ask(server: Any) -> httpx.Response:
    with server.client("shared") as client:
        answer: httpx.Response = client.post(CHAT, json=chat(max_tokens=6, ignore_eos=True))
    return answer


@pytest.mark.parametrize(("when_away", "expected"), [thorough("open", {200}), ("closed", {200, 503})])
def test_no_request_hangs_when_redis_is_killed_and_sharing_goes_on_when_it_is_back(
    gateways, own_redis, wait_for, when_away, expected
):
    url = f"redis://127.0.0.1:{own_redis.port}/0"
    servers = gateways(redis_url=url, timeout_s=2, when_away=when_away)
    answers: list[httpx.Response] = []

    def client(number: int) -> None:
        for _ in range(12):
            answers.append(ask(servers[number % 2]))

    with ThreadPoolExecutor(20) as pool:
        asking = [pool.submit(client, number) for number in range(20)]
        wait_for(lambda: len(answers) >= 40, "many to be answered")
        own_redis.kill()
        for each in asking:
            each.result(120)
    assert len(answers) == 240 and {answer.status_code for answer in answers} == expected
    for answer in answers:
        if answer.status_code == 503:
            assert answer.json()["error"]["code"] == "limits_unavailable" and answer.headers["retry-after"]
    own_redis.start()
    for server in servers:
        with server.client() as client:
            wait_for(lambda client=client: "kvarn_limits_redis_away 0.0" in client.get("/metrics").text, "Redis")
    remaining = [int(ask(server).headers["x-ratelimit-remaining-tokens"]) for server in servers]
    assert remaining == [10**6 - 10, 10**6 - 20], "a prompt of four tokens and six more, at either gateway"
