"""The real command with the packaged model and the official client."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import httpx
import openai
import pytest

from kvarn.config.gateway import GatewayConfig
from kvarn.doctor.finding import Level
from kvarn.doctor.server import check_server

SMALL = ("--max-context-length", "512", "--kv-cache-gib", "0.05")
ASK = [{"role": "user", "content": "What is Kvarn?"}]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_the_official_client_streams_and_a_signal_ends_everything(serve, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        _serves_a_stream(serve(*SMALL, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="2000000000"))
        told = [manager.recv(4096).decode() for _ in range(3)]
    assert told == ["WATCHDOG=1", "READY=1\nSTATUS=serves kvarn-demo", "STOPPING=1"]


def _serves_a_stream(served):
    engines = served.engines()
    assert len(engines) == 1
    assert [each.level for each in check_server(GatewayConfig(port=httpx.URL(served.url).port))] == [Level.OK] * 2
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        stream = client.chat.completions.create(model="kvarn-demo", messages=ASK, stream=True, max_tokens=12)
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert served.stop() == 0
    assert gone(engines[0])


def test_an_interrupt_lets_a_running_answer_finish(serve):
    served = serve("--max-context-length", "512", "--kv-cache-gib", "0.05")
    body = {"model": "kvarn-demo", "messages": ASK, "stream": True, "max_tokens": 200, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        served.process.send_signal(signal.SIGINT)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert served.process.wait(timeout=60) == 0


@pytest.mark.thorough
def test_an_answer_goes_on_when_its_engine_is_killed(serve):
    served = serve("--max-context-length", "1024", "--kv-cache-gib", "0.05")
    body = {"model": "kvarn-demo", "prompt": [5], "stream": True, "max_tokens": 1000, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=120) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(served.engines()[0], signal.SIGKILL)
        assert httpx.get(f"{served.url}/health").status_code == 200
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]


@pytest.mark.thorough
def test_two_hundred_streams_at_once_lose_nothing_and_leak_nothing(serve):
    served = serve("--max-context-length", "512", "--kv-cache-gib", "0.05")
    usage: list[int] = []

    def one(client: openai.OpenAI) -> None:
        options = {"include_usage": True}
        stream = client.completions.create(
            model="kvarn-demo",
            prompt="What is Kvarn?",
            stream=True,
            max_tokens=16,
            stream_options=options,
            extra_body={"ignore_eos": True},
        )
        usage.extend(chunk.usage.completion_tokens for chunk in stream if chunk.usage)

    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        threads = [threading.Thread(target=one, args=(client,)) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        capacity = client.models.retrieve("kvarn-demo").model_extra["capacity"]
    assert usage == [16] * 200
    assert (capacity["running"], capacity["waiting"]) == (0, 0)
    assert capacity["kv_blocks_free"] == capacity["kv_blocks_total"] > 0
