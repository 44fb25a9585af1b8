"""A server with default settings refuses nobody before a bound is reached."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import httpx

from asking import CHAT, chat, metric
from background_runs import hold
from kvarn.costs.step_times import StepTimes
from kvarn.wire.messages import EngineStats

Serve = Callable[..., AbstractContextManager[Any]]

SLOW = StepTimes(fixed_s=0.5, prefill_token_s=0.02, prefill_pair_s=0, decode_row_s=0.05, decode_token_s=0)
SWAMPED = EngineStats(step_times=SLOW, step_s=5.0, running=64, decode_rows=10, prefill_tokens=5_000)
"""An engine that reads 50 prompt tokens a second, with minutes of them before it."""


def test_64_requests_at_once_to_a_slow_model_are_all_answered(serve):
    with serve() as server:
        server.chat.stats = SWAMPED
        server.chat.step_s = 0.1

        def ask(index: int) -> int:
            fields = {"stream": True} if index % 2 else {"service_tier": "flex"} if index % 4 else {}
            return httpx.post(server.url + CHAT, json=chat(str(index), **fields), timeout=60).status_code

        with ThreadPoolExecutor(64) as clients:
            statuses = list(clients.map(ask, range(64)))
        assert statuses == [200] * 64
        assert len(server.chat.submitted) == 64


def test_one_request_more_than_may_be_answered_gets_503_and_the_others_go_on(serve, wait_for):
    with serve(max_requests=2) as server, server.client() as client, ThreadPoolExecutor(2) as clients:
        server.chat.stats = SWAMPED
        go_on = hold(server)
        running = [clients.submit(httpx.post, server.url + CHAT, json=chat(), timeout=20) for _ in range(2)]
        wait_for(lambda: len(server.chat.submitted) == 2, "both to be answered")
        refused = client.post(CHAT, json=chat())
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "server_busy"
        assert "gateway.max_requests" in refused.json()["error"]["message"] and refused.headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200
        go_on()
        assert [each.result().status_code for each in running] == [200, 200]
        assert client.post(CHAT, json=chat()).status_code == 200


def test_metrics_count_against_the_configured_targets(serve):
    def prepare(server: Any) -> None:
        tiny, *others = server.config.models
        strict = tiny.model_copy(update={"ttft_target_s": 0.001})
        server.served["tiny"].config = strict
        server.configure(models=(strict, *others))

    for prepared, outcome in ((prepare, "missed"), (lambda server: None, "met")):
        with serve(prepared) as server, server.client() as client:
            server.chat.step_s = 0.01
            assert client.post(CHAT, json=chat()).status_code == 200
            assert metric(client, "kvarn_slo_requests_total", model="tiny", outcome=outcome) == 1
