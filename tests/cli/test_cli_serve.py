"""The real command with the packaged model and the official client."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import httpx
import openai
import pytest

ASK = [{"role": "user", "content": "What is Kvarn?"}]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_the_official_client_streams_and_a_signal_ends_everything(serve):
    served = serve("--max-context-length", "512", "--kv-cache-gib", "0.05")
    engines = served.engines()
    assert len(engines) == 1
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
