"""Load shedding at the gateway: from when a request counts, and how early it is refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from kvarn.config.platform import AdmissionConfig, SloConfig
from kvarn.costs.step_times import StepTimes
from kvarn.wire.messages import EngineStats

CHAT = "/v1/chat/completions"
HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=0, decode_row_s=1e-3, decode_token_s=0)
IDLE = EngineStats(step_times=TIMES, step_s=0.01)
SWAMPED = EngineStats(step_times=TIMES, step_s=0.01, running=1, prefill_tokens=12_000)
"""Prompts of a little more than a second stand before the next."""


def body(text: str = "x") -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4}


@pytest.fixture
def shedding(serve: Callable[..., AbstractContextManager[Any]], wait_for: Any) -> Iterator[Any]:
    def prepare(server: Any) -> None:
        changes = {"admission": AdmissionConfig(load_shedding=True), "slo": SloConfig(ttft_target_s=1.0)}
        server.config = server.config.model_copy(update=changes)

    with serve(prepare) as server, server.client() as client:
        wait_for(lambda: client.get("/ready").status_code == 200, "the gateway to be ready")
        server.http = client
        yield server


def test_time_counts_from_the_last_byte_of_the_body(shedding: Any) -> None:
    shedding.chat.stats = IDLE
    content = json.dumps(body()).encode()
    raw = shedding.connect()
    raw.sendall(f"{HEAD}content-length: {len(content)}\r\n\r\n".encode() + content[:20])
    time.sleep(1.5)  # longer than the target
    raw.sendall(content[20:])
    assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")
    raw.close()
    assert 'kvarn_slo_requests_total{model="tiny",outcome="met"} 1.0' in shedding.http.get("/metrics").text


def test_a_refusal_waits_for_no_thread_that_tokenizes(shedding: Any, wait_for: Any) -> None:
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
        refused = shedding.http.post(CHAT, json=body("long " * 1_500))
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "overloaded"
    finally:
        go_on.set()
        for each in busy:
            each.join(10)


def test_refused_requests_miss_their_targets(shedding: Any) -> None:
    shedding.chat.stats = SWAMPED
    assert shedding.http.post(CHAT, json=body()).status_code == 503
    page = shedding.http.get("/metrics").text
    assert 'kvarn_slo_requests_total{model="tiny",outcome="missed"} 1.0' in page
    assert 'kvarn_goodput_ratio{model="tiny"} 0.0' in page


def test_a_request_is_refused_before_its_body_is_read_where_no_model_would_answer_in_time(shedding: Any) -> None:
    shedding.chat.stats = SWAMPED
    raw = shedding.connect()
    raw.sendall(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n".encode()
    )
    assert raw.recv(4096).startswith(b"HTTP/1.1 503 ")
    raw.close()


def test_a_body_of_unannounced_length_is_refused_before_it_is_parsed(shedding: Any) -> None:
    shedding.chat.stats = SWAMPED
    refused = shedding.http.post(CHAT, content=iter([b"{no", b" json"]), headers={"content-type": "application/json"})
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "overloaded"
    assert "'tiny'" in refused.json()["error"]["message"]


def test_what_runs_in_the_background_is_not_refused_for_being_late(shedding: Any, wait_for: Any) -> None:
    shedding.chat.stats = SWAMPED
    sent = {"model": "tiny", "input": "x", "background": True, "max_output_tokens": 16}
    answer = shedding.http.post("/v1/responses", json=sent)
    assert answer.status_code == 200 and answer.json()["status"] in ("queued", "in_progress")
