"""`kvarn serve --api-server-count N`: several gateway processes on one port act as one server."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvarn as kvarn_package
from deployed_server import wait_for

Served = Any
"""What the fixture `serve` gives."""

SMALL = ("--max-context-length", "2048", "--kv-cache-gib", "0.1")
ASK = {"model": "kvarn-demo", "prompt": "What is Kvarn?", "max_tokens": 4}
LONG = ASK | {"max_tokens": 1000, "ignore_eos": True, "stream": True, "logprobs": 5}
"""More bytes than the sockets' buffers hold."""
PLACES = 12
"""Requests that may run at once in the shared server: those that go on, those of a process that died, which keep their
places for a while, and those that were answered a moment ago."""
STREAMS = 4


@pytest.fixture(autouse=True)
def _own_data_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVARN_DATA_DIR", str(tmp_path))


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def workers(served: Served) -> list[int]:
    """Gateway processes beside the main one."""
    return served.children("kvarn.api_servers.worker")


def sockets(pid: int) -> int:
    return sum(str(each.readlink()).startswith("socket:") for each in Path(f"/proc/{pid}/fd").iterdir())


def gone(pid: int) -> bool:
    return not command_of(pid)


CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
"""Each request has a connection of its own."""


def post(served: Served, body: dict[str, Any] = ASK) -> httpx.Response:
    return CLIENT.post(f"{served.url}/v1/completions", json=body)


def at_once(number: int, work: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(number)

    def one(index: int) -> Any:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


def metric(served: Served, name: str) -> float:
    """The sum of a metric's samples."""
    lines = CLIENT.get(f"{served.url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))


def answered_by(served: Served) -> dict[str, str]:
    """By request id, the number of the gateway process that answered."""
    lines = [line for line in list(served.log) if "msg=answered" in line]
    return {
        found[1]: found[2] for line in lines if (found := re.search(r"request_id=(\S+) .*gateway_process=(\d+)", line))
    }


class Stream:
    """A long answer that is not read beyond its first bytes, so that its request goes on until it is."""

    def __init__(self, served: Served) -> None:
        host, port = served.url.removeprefix("http://").split(":")
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        self._socket.settimeout(120)
        self._socket.connect((host, int(port)))
        body = json.dumps(LONG).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self._file = self._socket.makefile("rb")

    def status(self) -> int:
        return int(self._file.readline().split()[1])

    def read(self) -> bool:
        """Read to the end; whether it came."""
        lines = collections.deque[bytes](maxlen=3)
        with contextlib.suppress(OSError):
            for line in self._file:
                if line.strip():
                    lines.append(line.strip())
                if line == b"0\r\n":
                    break
        self.close()
        return b"data: [DONE]" in lines

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def read_all(streams: list[Stream]) -> list[bool]:
    with ThreadPoolExecutor(len(streams)) as pool:
        return list(pool.map(Stream.read, streams))


@pytest.fixture(scope="module")
def shared(serve_long: Callable[..., Served], tmp_path_factory: pytest.TempPathFactory) -> Served:
    """One server of three processes for the tests that follow, in their order: the last one kills it."""
    environment = {
        "KVARN_DATA_DIR": str(tmp_path_factory.mktemp("shared")),
        "KVARN_QUALITY__ENABLED": "false",  # golden prompts would be counted among the engine's requests
        "KVARN_LIMITS__CONCURRENCY": str(PLACES),
    }
    return serve_long("--api-server-count", "3", *SMALL, **environment)


def test_all_processes_answer_and_show_the_same(shared):
    assert len(workers(shared)) == 2
    sent = 0
    while len(set(answered_by(shared).values())) < 3 and sent < 600:
        assert {answer.status_code for answer in at_once(4, lambda _: post(shared))} == {200}
        sent += 4
    assert set(answered_by(shared).values()) == {"0", "1", "2"}
    pages: dict[str, set[str]] = {"/v1/models": set(), "/ready": set(), "/health": set()}
    for page, answers in pages.items():
        answers |= {re.sub(r'"capacity":{.*?}', "", CLIENT.get(shared.url + page).text) for _ in range(20)}
    assert {page: len(answers) for page, answers in pages.items()} == dict.fromkeys(pages, 1), pages
    series = f"{shared.url}/console/api/series?names=replicas"
    assert len({CLIENT.get(series).json()["since"] for _ in range(20)}) == 1, "the history is that of the main process"
    wait_for(lambda: metric(shared, "kvarn_requests_in_flight") == 1)  # the scrape itself
    shown = {name: metric(shared, name) for name in ("kvarn_ttft_seconds_count", "kvarn_finished_total")}
    assert shown == dict.fromkeys(shown, sent)
    assert metric(shared, "kvarn_gateway_processes") == 3
    assert metric(shared, "kvarn_replica_up") == 1


@pytest.mark.thorough
def test_a_second_server_on_the_port_is_refused(shared, kvarn):
    refused = kvarn("serve", "--api-server-count", "2", "--port", shared.url.rsplit(":", 1)[1])
    assert refused.returncode == 2
    assert "is taken by another process" in refused.stderr


def test_a_limit_of_running_requests_is_exact_over_all_processes(shared):
    counted = metric(shared, "kvarn_ttft_seconds_count")
    streams = [Stream(shared) for _ in range(PLACES + 4)]
    statuses = [stream.status() for stream in streams]
    assert (statuses.count(200), statuses.count(429)) == (PLACES, 4)
    assert post(shared).status_code == 429
    wait_for(lambda: metric(shared, "kvarn_ttft_seconds_count") == counted + PLACES)
    for stream in streams:
        stream.close()
    wait_for(lambda: post(shared).status_code == 200)  # places are given back


def test_a_killed_process_is_replaced_and_each_request_is_on_the_ledger_once(shared):
    victim = 0
    while not victim:
        wait_for(lambda: outcomes(shared).total() == metric(shared, "kvarn_ttft_seconds_count"))
        ledger, before = outcomes(shared), {pid: sockets(pid) for pid in workers(shared)}
        streams = [Stream(shared) for _ in range(STREAMS)]
        assert [stream.status() for stream in streams] == [200] * STREAMS
        victim = next((pid for pid, number in before.items() if 0 < sockets(pid) - number < STREAMS), 0)
        if not victim:  # the kernel spreads them by chance
            read_all(streams)
    counted = ledger.total() + STREAMS
    wait_for(lambda: metric(shared, "kvarn_ttft_seconds_count") == counted)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: metric(shared, "kvarn_gateway_process_restarts_total") == 1)
    whole = read_all(streams)
    well, broken = whole.count(True), whole.count(False)
    assert broken > 0
    assert well > 0, "those of the other processes go on"
    wait_for(lambda: metric(shared, "kvarn_gateway_processes") == 3)
    assert metric(shared, "kvarn_ttft_seconds_count") == counted, "what the dead process had counted stays"
    wait_for(lambda: metric(shared, "kvarn_running_requests") == 0)
    wait_for(lambda: outcomes(shared).total() >= counted)
    assert outcomes(shared) - ledger == {"finished": well, "lost": broken}
    assert {answer.status_code for answer in at_once(4, lambda _: post(shared))} == {200}


def outcomes(served: Served) -> collections.Counter[str]:
    """Of the requests on the ledger."""
    with contextlib.closing(sqlite3.connect(Path(served.data, "kvarn.db"))) as database:
        return collections.Counter(row[0] for row in database.execute("SELECT outcome FROM usage_events"))


def test_a_restarted_engine_serves_all_processes_again(shared):
    (engine,) = shared.engines()
    os.kill(engine, signal.SIGKILL)
    wait_for(lambda: metric(shared, "kvarn_replica_restarts_total") == 1)
    wait_for(lambda: metric(shared, "kvarn_replica_up") == 1)
    wait_for(lambda: all(CLIENT.get(f"{shared.url}/ready").status_code == 200 for _ in range(8)))
    before = len(answered_by(shared))
    while len(set(list(answered_by(shared).values())[before:])) < 2:
        assert {answer.status_code for answer in at_once(4, lambda _: post(shared))} == {200}


def test_nothing_outlives_a_killed_main_process(shared):
    processes = shared.children()
    assert len(processes) >= 3  # the engine and the template's, too
    shared.stop(signal.SIGKILL)
    wait_for(lambda: all(gone(pid) for pid in processes))


@pytest.mark.thorough
def test_a_budget_is_never_passed_by_processes_together(serve):
    served = serve("--api-server-count", "3", *SMALL)
    budgets = f"{served.url}/v1/organization/budgets"
    made = CLIENT.post(budgets, json={"unit": "tokens", "period": "day", "hard_limit": 500})
    assert made.status_code == 200, made.text
    body = ASK | {"max_tokens": 20, "ignore_eos": True}
    time.sleep(1.5)  # metering.budget_refresh_s: till then the other processes do not know it
    answers = at_once(48, lambda _: post(served, body))
    used = sum(answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200)
    largest = max(answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200)
    assert 500 - largest < used <= 500
    assert {answer.status_code for answer in answers} == {200, 429}


@pytest.mark.thorough
def test_a_process_that_cannot_load_its_text_says_so_and_takes_no_requests(serve, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(Path(kvarn_package.__file__).parent / "assets" / "kvarn-demo", model)
    served = serve(str(model), "--served-model-name", "kvarn-demo", "--api-server-count", "2", *SMALL)
    (victim,) = workers(served)
    (model / "tokenizer.json").rename(tmp_path / "away.json")
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: any("cannot load the tokenizer" in line for line in list(served.log)))
    wait_for(lambda: sum("is gone and will be replaced" in line for line in list(served.log)) >= 2)
    assert {answer.status_code for answer in at_once(8, lambda _: post(served))} == {200}
    (tmp_path / "away.json").rename(model / "tokenizer.json")
    wait_for(lambda: sum("a gateway process serves" in line for line in list(served.log)) == 2)


@pytest.mark.thorough
def test_a_server_stops_at_once_while_a_process_waits_to_be_started_again(serve, monkeypatch):
    monkeypatch.setenv("KVARN_REPLICA__RESTART_BACKOFF_S", "1000")
    served = serve("--api-server-count", "2", *SMALL)
    (victim,) = workers(served)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: any("is gone and will be replaced" in line for line in list(served.log)))
    assert served.stop() == 0


def test_a_signal_lets_all_processes_finish_what_runs(serve, monkeypatch):
    monkeypatch.setenv("KVARN_GATEWAY__DRAIN_TIMEOUT_S", "120")
    served = serve("--api-server-count", "2", *SMALL)
    processes = served.children()
    assert len(processes) >= 3  # the engine and the template's, too
    streams = [Stream(served) for _ in range(6)]
    assert [stream.status() for stream in streams] == [200] * 6
    served.process.send_signal(signal.SIGTERM)
    assert read_all(streams) == [True] * 6
    assert served.process.wait(60) == 0
    assert all(gone(pid) for pid in processes)


def test_one_process_is_the_default_and_a_count_below_one_is_refused(kvarn):
    refused = kvarn("serve", "--api-server-count", "0")
    assert refused.returncode == 2
    assert "gateway.api_server_count" in refused.stderr
