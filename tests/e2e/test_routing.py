"""Two real engine processes behind the real gateway: conversations go back to where they are cached, bursts spread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

CONVERSATIONS = 12


@pytest.fixture(scope="module")
def pair(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    configuration = {
        "models": [{"name": "kvarn-demo", "path": "kvarn-demo", "replicas": 2, "kv_cache_gib": 0.1, "threads": 1}],
        "gateway": {"port": 0, "drain_timeout_s": 2},
    }
    with serving(tmp_path_factory.mktemp("pair"), configuration) as server:
        yield server


def by_replica(server: Any, metric: str) -> dict[str, float]:
    """A metric's values, by replica."""
    found = re.findall(
        rf'^{metric}{{model="kvarn-demo",replica="([^"]+)"\S* (\S+)$', server.http.get("/metrics").text, re.M
    )
    values: dict[str, float] = {}
    for replica, value in found:
        values[replica] = values.get(replica, 0.0) + float(value)
    return values


def knows_all(server: Any) -> bool:
    """Whether the gateway knows as many blocks of each replica as its engine has cached; nothing runs."""
    cached = dict(
        re.findall(
            r'^kvarn_kv_blocks{model="kvarn-demo",replica="([^"]+)",state="cached"} (\S+)$',
            server.http.get("/metrics").text,
            re.M,
        )
    )
    known = by_replica(server, "kvarn_routing_known_blocks")
    return {name: float(value) for name, value in cached.items()} == known and sum(known.values()) > 0


def turn(server: Any, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"model": "kvarn-demo", "messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_second_turns_go_where_the_first_ones_are_cached_and_a_burst_uses_both(pair):
    # Prompts that take longer to compute than the overhead of a step varies.
    questions = [f"Conversation {number}. " + "What does a router do? " * 200 for number in range(CONVERSATIONS)]
    conversations = [[{"role": "user", "content": question}] for question in questions]
    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        firsts = list(pool.map(lambda messages: turn(pair, messages), conversations))
    assert min(by_replica(pair, "kvarn_routing_requests_total").values()) > 0
    assert min(by_replica(pair, "kvarn_prompt_tokens_total").values()) > 0
    pair.wait_until(lambda: knows_all(pair), "all blocks to be told")

    for messages, first in zip(conversations, firsts, strict=True):
        messages.append({"role": "assistant", "content": first["choices"][0]["message"]["content"]})
        messages.append({"role": "user", "content": "And why?"})
        second = turn(pair, messages)
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        # The prompt's full blocks; the answer's text may be cut into other tokens when it comes back.
        assert cached >= first["usage"]["prompt_tokens"] // 16 * 16
    pair.wait_until(lambda: knows_all(pair), "all blocks to be told")
    expected, found = (
        by_replica(pair, f"kvarn_{name}_total") for name in ("routing_expected_cached_tokens", "cached_tokens")
    )
    assert sum(expected.values()) > 0 and sum(found.values()) >= 0.9 * sum(expected.values())
