"""Load shedding at the gateway: from when a request counts, and how early it is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from asking import CHAT, chat, code_of, metric
from kvarn.admission.traffic import FIRST_TOKENS_PER_BYTE, Traffic
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import AdmissionConfig, SloConfig
from kvarn.costs.step_times import StepTimes
from kvarn.gateway import middleware
from kvarn.wire.messages import EngineStats
from raw_http import post_of

TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=0, decode_row_s=1e-3, decode_token_s=0)
IDLE = EngineStats(step_times=TIMES, step_s=0.01)
SWAMPED = EngineStats(step_times=TIMES, step_s=0.01, running=1, prefill_tokens=12_000)
"""Prompts of a little more than a second stand before the next."""


@pytest.fixture
def shedding(serve: Callable[..., AbstractContextManager[Any]]) -> Iterator[Any]:
    def prepare(server: Any) -> None:
        tiny, *others = server.config.models
        tiny = server.served["tiny"].config = tiny.model_copy(update={"aliases": ("small",)})
        server.configure(models=(tiny, *others))

    config = {"admission": AdmissionConfig(load_shedding=True), "slo": SloConfig(ttft_target_s=1.0)}
    with serve(prepare, config=config) as server, server.client() as client:
        server.http = client
        yield server


def _replica_admission(server: Any) -> Any:
    (replica,) = server.served["tiny"].replicas
    return server.app.state.bodies._check.__self__._replicas[replica]


def test_time_counts_from_the_last_byte_of_the_body(
    shedding: Any, wait_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shedding.chat.stats = IDLE
    records: list[Any] = []
    new_record = middleware.new_record
    monkeypatch.setattr(middleware, "new_record", lambda scope: records.append(new_record(scope)) or records[-1])
    request = post_of(CHAT, chat(max_tokens=4))
    raw = shedding.connect()
    raw.sendall(request[:-20])
    wait_for(lambda: shedding.gateway.held.used, "the body to begin")
    timeline, half_sent = records[0].timeline, SYSTEM_CLOCK.now()
    raw.sendall(request[-20:])
    assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")
    raw.close()
    assert timeline.began < half_sent < timeline.received_s
    assert metric(shedding.http, "kvarn_slo_requests_total", model="tiny", outcome="met") == 1


def test_a_refusal_waits_for_no_thread_that_tokenizes(shedding: Any) -> None:
    shedding.chat.stats = SWAMPED
    threads = shedding.config.gateway.tokenize_threads
    go_on, began = threading.Event(), threading.Semaphore(0)

    def occupy() -> None:
        began.release()
        go_on.wait(30)

    busy = [
        threading.Thread(target=lambda: shedding.do(shedding.gateway.text.run("other", 10**6, occupy)))
        for _ in range(threads)
    ]
    for each in busy:
        each.start()
    for _ in range(threads):
        assert began.acquire(timeout=10)
    try:
        refused = shedding.http.post(CHAT, json=chat("long " * 1_500, max_tokens=4))
        assert code_of(refused) == (503, "overloaded")
    finally:
        go_on.set()
        for each in busy:
            each.join(10)


def test_refused_requests_miss_their_targets(shedding: Any) -> None:
    shedding.chat.stats = SWAMPED
    assert shedding.http.post(CHAT, json=chat(max_tokens=4)).status_code == 503
    assert metric(shedding.http, "kvarn_slo_requests_total", model="tiny", outcome="missed") == 1
    assert 'kvarn_goodput_ratio{model="tiny"} 0.0' in shedding.http.get("/metrics").text


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_under_each_of_its_names_a_model_refuses_before_it_parses(shedding: Any, name: str) -> None:
    shedding.chat.stats = SWAMPED
    refused = shedding.http.post(CHAT, json=chat(max_tokens=4) | {"model": name, "temperature": "hot"})
    assert code_of(refused) == (503, "overloaded")
    assert "'tiny'" in refused.json()["error"]["message"]


def test_what_runs_in_the_background_is_not_refused_for_being_late(shedding: Any) -> None:
    shedding.chat.stats = SWAMPED
    sent = {"model": "tiny", "input": "x", "background": True, "max_output_tokens": 16}
    answer = shedding.http.post("/v1/responses", json=sent)
    assert answer.status_code == 200 and answer.json()["status"] in ("queued", "in_progress")


def test_a_prompt_that_is_stored_elsewhere_says_nothing_of_what_a_body_holds(shedding: Any) -> None:
    shedding.chat.stats = IDLE
    sent = {"model": "tiny", "input": "x" * 200, "max_output_tokens": 16}
    first = shedding.http.post("/v1/responses", json=sent)
    assert first.status_code == 200
    traffic = _replica_admission(shedding).traffic
    learned = traffic.tokens_in(1000)
    assert learned != 1000 * FIRST_TOKENS_PER_BYTE
    follow_up = sent | {"input": "y", "previous_response_id": first.json()["id"]}
    assert shedding.http.post("/v1/responses", json=follow_up).status_code == 200
    assert traffic.tokens_in(1000) == learned


def test_no_body_is_expected_to_have_more_tokens_than_bytes() -> None:
    traffic = Traffic(1.0, 2.0)
    for _ in range(1000):
        traffic.learn_body(10, 100_000)
    assert 5 < traffic.tokens_in(10) <= 10


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    "field",
    [f'"{name}":{value}' for name in ("n", "max_tokens", "priority") for value in (HUGE, -(10**12))]
    + ['"max_tokens":0', '"n":0', f'"x":{"[" * 100_000}{"]" * 100_000}'],
    ids=lambda field: field[:20],
)
def test_a_body_that_is_not_as_it_should_be_is_a_400_and_changes_no_account(
    shedding: Any, wait_for: Any, field: str
) -> None:
    shedding.chat.stats = IDLE
    assert shedding.http.post(CHAT, json=chat(max_tokens=4)).status_code == 200
    accounts = _replica_admission(shedding).controller.queue._accounts
    wait_for(lambda: not any(account.in_service for account in accounts.values()), "the first request to be settled")
    before = {tenant: account.counter for tenant, account in accounts.items()}
    assert before
    content = json.dumps(chat("other") | {"max_tokens": None}).removesuffix("}") + f",{field}}}"
    answer = shedding.http.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert {tenant: account.counter for tenant, account in accounts.items()} == before
