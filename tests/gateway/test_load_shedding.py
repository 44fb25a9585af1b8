"""Load shedding at the gateway: from when a request counts, and how early it is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from asking import CHAT, chat, code_of, metric
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
    config = {"admission": AdmissionConfig(load_shedding=True), "slo": SloConfig(ttft_target_s=1.0)}
    with serve(config=config) as server, server.client() as client:
        server.http = client
        yield server


def test_time_counts_from_the_last_byte_of_the_body(shedding, wait_for, monkeypatch):
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


def test_a_refusal_waits_for_no_thread_that_tokenizes(shedding):
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


def test_refused_requests_miss_their_targets(shedding):
    shedding.chat.stats = SWAMPED
    assert shedding.http.post(CHAT, json=chat(max_tokens=4)).status_code == 503
    assert metric(shedding.http, "kvarn_slo_requests_total", model="tiny", outcome="missed") == 1
    assert 'kvarn_goodput_ratio{model="tiny"} 0.0' in shedding.http.get("/metrics").text


def test_a_request_is_refused_before_its_body_is_read_where_no_model_would_answer_in_time(shedding):
    shedding.chat.stats = SWAMPED
    raw = shedding.connect()
    raw.sendall(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n".encode()
    )
    assert raw.recv(4096).startswith(b"HTTP/1.1 503 ")
    raw.close()


def test_a_body_of_unannounced_length_is_refused_before_it_is_parsed(shedding):
    shedding.chat.stats = SWAMPED
    refused = shedding.http.post(CHAT, content=iter([b"{no", b" json"]), headers={"content-type": "application/json"})
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "overloaded"
    assert "'tiny'" in refused.json()["error"]["message"]


def test_what_runs_in_the_background_is_not_refused_for_being_late(shedding):
    shedding.chat.stats = SWAMPED
    sent = {"model": "tiny", "input": "x", "background": True, "max_output_tokens": 16}
    answer = shedding.http.post("/v1/responses", json=sent)
    assert answer.status_code == 200 and answer.json()["status"] in ("queued", "in_progress")
