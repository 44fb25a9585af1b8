"""`kvarn serve --api-server-count N`: several gateway processes on one port act as one server."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

Served = Any
"""What the fixture `serve` gives."""

SMALL = ("--max-context-length", "2048", "--kv-cache-gib", "0.1")
ASK = {"model": "kvarn-demo", "prompt": "What is Kvarn?", "max_tokens": 4}
LONG = ASK | {"max_tokens": 1900, "ignore_eos": True, "stream": True}


@pytest.fixture(autouse=True)
def _no_shedding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVARN_ADMISSION__ENABLED", "false")
    monkeypatch.setenv("KVARN_DATA_DIR", str(tmp_path))


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def workers(served: Served) -> list[int]:
    """Gateway processes beside the main one."""
    return [pid for pid in served.engines() if "processes.worker" in command_of(pid)]


def gone(pid: int) -> bool:
    return not command_of(pid)


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def post(served: Served, body: dict[str, Any] = ASK) -> httpx.Response:
    """A request over a connection of its own."""
    return httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)


def at_once(number: int, work: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(number)

    def one(index: int) -> Any:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


def metric(served: Served, name: str) -> float:
    """The sum of a metric's samples."""
    lines = httpx.get(f"{served.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))


def answered_by(served: Served) -> dict[str, str]:
    """By request id, the number of the gateway process that answered."""
    lines = [line for line in list(served.log) if "msg=answered" in line]
    return {
        found[1]: found[2] for line in lines if (found := re.search(r"request_id=(\S+) .*gateway_process=(\d+)", line))
    }


class Streams:
    """Long answers that are being read, each over its own connection."""

    def __init__(self, served: Served, number: int, body: dict[str, Any] = LONG) -> None:
        self.statuses: list[int] = []
        self.ended_well = 0
        self.broken = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._read, args=(served, body)) for _ in range(number)]
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.statuses) == number)

    def _read(self, served: Served, body: dict[str, Any]) -> None:
        status, last = 0, ""
        try:
            with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=120) as response:
                for line in response.iter_lines():
                    if not status:
                        status = response.status_code
                        self.statuses.append(status)
                    last = line or last
        except httpx.HTTPError:
            last = ""
        with self._lock:
            self.ended_well += last == "data: [DONE]"
            self.broken += last != "data: [DONE]"

    def join(self) -> None:
        for thread in self._threads:
            thread.join(120)


def test_all_processes_answer_and_show_the_same(serve):
    served = serve("--api-server-count", "3", *SMALL)
    assert len(workers(served)) == 2
    sent = 0
    while len(set(answered_by(served).values())) < 3 and sent < 600:
        assert {answer.status_code for answer in at_once(12, lambda _: post(served))} == {200}
        sent += 12
        time.sleep(0.1)  # for the log to be read
    assert set(answered_by(served).values()) == {"0", "1", "2"}
    pages: dict[str, set[str]] = {"/v1/models": set(), "/ready": set(), "/health": set()}
    for page, answers in pages.items():
        answers |= {re.sub(r'"capacity":{.*?}', "", httpx.get(served.url + page).text) for _ in range(20)}
    assert {page: len(answers) for page, answers in pages.items()} == dict.fromkeys(pages, 1), pages
    until(lambda: metric(served, "kvarn_requests_in_flight") == 1)  # the scrape itself
    shown = {name: metric(served, name) for name in ("kvarn_ttft_seconds_count", "kvarn_finished_total")}
    assert shown == dict.fromkeys(shown, sent)
    assert metric(served, "kvarn_gateway_processes") == 3
    assert metric(served, "kvarn_replica_up") == 1


def test_a_limit_of_requests_a_minute_is_exact_over_all_processes(serve, monkeypatch):
    monkeypatch.setenv("KVARN_LIMITS__REQUESTS_PER_MINUTE", "17")
    served = serve("--api-server-count", "3", *SMALL)
    began = time.monotonic()
    answers = at_once(48, lambda _: post(served))
    took_s = time.monotonic() - began
    assert took_s < 60, "a new minute may have begun"
    statuses = [answer.status_code for answer in answers]
    assert (statuses.count(200), statuses.count(429)) == (17, 31)
    assert len(set(answered_by(served).values())) > 1


def test_a_limit_of_running_requests_is_exact_over_all_processes(serve, monkeypatch):
    monkeypatch.setenv("KVARN_LIMITS__CONCURRENCY", "4")
    served = serve("--api-server-count", "3", *SMALL)
    streams = Streams(served, 16)
    assert metric(served, "kvarn_running_requests") == 4, "they should still run"
    assert (streams.statuses.count(200), streams.statuses.count(429)) == (4, 12)
    streams.join()
    assert post(served).status_code == 200  # places are given back


def test_a_budget_is_never_passed_by_processes_together(serve):
    served = serve("--api-server-count", "3", *SMALL)
    budgets = f"{served.url}/v1/organization/budgets"
    made = httpx.post(budgets, json={"unit": "tokens", "period": "day", "hard_limit": 500})
    assert made.status_code == 200, made.text
    body = ASK | {"max_tokens": 20, "ignore_eos": True}
    time.sleep(1.5)  # metering.budget_refresh_s: till then the other processes do not know it
    answers = at_once(48, lambda _: post(served, body))
    used = sum(answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200)
    largest = max(answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200)
    assert 500 - largest < used <= 500
    assert {answer.status_code for answer in answers} == {200, 429}


def test_a_killed_process_is_replaced_and_each_request_is_on_the_ledger_once(serve, tmp_path):
    served = serve("--api-server-count", "3", *SMALL)
    victim = workers(served)[0]
    streams = Streams(served, 24)
    assert streams.statuses == [200] * 24
    os.kill(victim, signal.SIGKILL)
    until(lambda: metric(served, "kvarn_gateway_process_restarts_total") == 1)
    streams.join()
    assert streams.ended_well + streams.broken == 24
    assert streams.ended_well > 0, "those of the other processes go on"
    until(lambda: metric(served, "kvarn_gateway_processes") == 3)
    until(lambda: metric(served, "kvarn_running_requests") == 0)
    assert metric(served, "kvarn_aborts_total") == streams.broken

    def outcomes() -> list[str]:
        with contextlib.closing(sqlite3.connect(tmp_path / "kvarn.db")) as database:
            return [row[0] for row in database.execute("SELECT outcome FROM usage_events")]

    until(lambda: len(outcomes()) >= 24)
    assert sorted(outcomes()) == ["finished"] * streams.ended_well + ["lost"] * streams.broken
    assert {answer.status_code for answer in at_once(12, lambda _: post(served))} == {200}


def test_a_signal_lets_all_processes_finish_what_runs(serve):
    served = serve("--api-server-count", "3", *SMALL)
    processes = served.engines()
    assert len(processes) == 3  # the engine, too
    streams = Streams(served, 12, LONG | {"max_tokens": 400})
    served.process.send_signal(signal.SIGTERM)
    streams.join()
    assert (streams.ended_well, streams.broken) == (12, 0)
    assert served.process.wait(60) == 0
    assert all(gone(pid) for pid in processes)


def test_nothing_outlives_a_killed_main_process(serve):
    served = serve("--api-server-count", "3", *SMALL)
    processes = served.engines()
    served.stop(signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in processes), 20)


def test_a_restarted_engine_serves_all_processes_again(serve):
    served = serve("--api-server-count", "2", *SMALL)
    (engine,) = set(served.engines()) - set(workers(served))
    os.kill(engine, signal.SIGKILL)
    until(lambda: metric(served, "kvarn_replica_restarts_total") == 1)
    until(lambda: metric(served, "kvarn_replica_up") == 1)
    until(lambda: all(httpx.get(f"{served.url}/ready").status_code == 200 for _ in range(8)))
    before = len(answered_by(served))
    while len(set(list(answered_by(served).values())[before:])) < 2:
        assert {answer.status_code for answer in at_once(12, lambda _: post(served))} == {200}


def test_one_process_is_the_default_and_a_count_below_one_is_refused(kvarn):
    refused = kvarn("serve", "--api-server-count", "0")
    assert refused.returncode == 2
    assert "gateway.api_server_count" in refused.stderr
