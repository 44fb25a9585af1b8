"""Many clients, clients that leave or read slowly, and an engine that is stopped: the really started server keeps its
promises, and says why a request was slow."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import threading
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import openai
import pytest

LONG: dict[str, Any] = {"model": "kvarn-demo", "max_tokens": 1500, "extra_body": {"ignore_eos": True}}


def question(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_two_hundred_streams_at_once_lose_nothing_and_leak_no_block(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as sdk:

        async def one(number: int) -> tuple[int, int, str | None]:
            stream = await sdk.chat.completions.create(
                model="kvarn-demo",
                messages=question(f"What is {number} plus {number}?"),
                stream=True,
                stream_options={"include_usage": True},
                max_tokens=4 + number % 8,
                seed=number,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
            received, counted, reason = 0, 0, None
            async for chunk in stream:
                for choice in chunk.choices:
                    received += len(choice.model_dump().get("token_ids") or [])
                    reason = choice.finish_reason or reason
                counted = chunk.usage.completion_tokens if chunk.usage else counted
            return received, counted, reason

        results = await asyncio.gather(*[one(number) for number in range(200)])
    assert results == [(4 + number % 8, 4 + number % 8, "length") for number in range(200)]
    server.wait_until(server.idle, "every block to come back")


def test_clients_that_leave_give_their_blocks_back(server, sdk):
    streams = [sdk.chat.completions.create(messages=question(f"Count to {i}."), stream=True, **LONG) for i in range(4)]
    for stream in streams:
        next(iter(stream))
    assert server.capacity()["running"] > 0
    for stream in streams:
        stream.close()
    server.wait_until(server.idle, "the blocks of the clients that left")
    with pytest.raises(openai.APITimeoutError):  # one that is not streaming leaves too
        sdk.with_options(timeout=0.1).chat.completions.create(messages=question("Count on."), **LONG)
    server.wait_until(server.idle, "the blocks of the client that gave up")


def explanation(server, answer_id: str) -> dict[str, Any]:
    """Why the request of an answer took as long as it did, once it is kept."""
    path, found = f"/console/api/requests/{answer_id.partition('-')[2]}", []

    def is_kept() -> bool:
        found.append(server.http.get(path))
        return found[-1].status_code == 200

    server.wait_until(is_kept, "the request to be kept")
    return found[-1].json()["explanation"]


def test_a_stopped_engine_is_told_as_slow_steps(server, sdk):
    """Stopped for a second, or for as long as the answer has taken by then."""
    engine = server.engine_pid("kvarn-demo")
    for _ in range(5):
        began_s = time.monotonic()
        stream = sdk.chat.completions.create(messages=question("Count on."), stream=True, **LONG)
        name = next(iter(stream)).id
        rest = threading.Thread(target=list, args=(stream,))
        rest.start()
        os.kill(engine, signal.SIGSTOP)
        try:
            rest.join(max(1.0, time.monotonic() - began_s))
            was_stopped = rest.is_alive()
        finally:
            os.kill(engine, signal.SIGCONT)
            rest.join()
        if was_stopped:  # else the answer had ended before
            break
    assert was_stopped
    found = explanation(server, name)
    assert found["cause"]["code"] == "slow steps", found["sentence"]
    assert found["cause"]["seconds"] > 0.9
    assert "a slow machine" in found["sentence"]


def test_a_client_that_does_not_read_is_told(server):
    """It reads on when the engine has long ended the answer, of which the sockets hold a part."""
    asked = {"model": "kvarn-demo", "max_tokens": 1500, "ignore_eos": True, "messages": question("Count on.")}
    body = json.dumps({**asked, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    port = int(server.url.rpartition(":")[2])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # the server's buffer grows with it
        client.settimeout(60)
        client.connect(("127.0.0.1", port))
        began_s = time.monotonic()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
        client.sendall(f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode() + body)
        received = client.recv(2048)
        while (name := re.search(rb'"id":"(chatcmpl-[^"]+)"', received)) is None:
            received += client.recv(2048)
        server.wait_until(server.idle, "the engine to end the answer")
        time.sleep(max(1.0, time.monotonic() - began_s))
        while client.recv(1 << 16):
            pass
    found = explanation(server, name[1].decode())
    assert found["cause"]["code"] == "client slow to read", found["sentence"]
    assert found["cause"]["seconds"] > 0.9
    assert found["sentence"].endswith("went to a client slow to read.")


KV_CACHE_TOKENS = 2048
"""The whole context of kvarn-demo: no smaller cache is taken."""


def test_a_filled_kv_cache_is_told_with_who_filled_it(serving, tmp_path):
    token_bytes = 4 * 2 * 4 * 32 * 4  # layers, keys and values, heads, their size, float32
    small = {"kv_cache_gib": (KV_CACHE_TOKENS + 64) * token_bytes / 2**30, "threads": 1, "dtype": "float32"}
    configuration = {
        "models": [{"name": "kvarn-demo", "path": "kvarn-demo", **small}],
        "gateway": {"port": 0, "drain_timeout_s": 2},
        "data_dir": str(tmp_path / "data"),
    }
    with serving(tmp_path, configuration) as server:
        tenant = server.http.post("/v1/organization/tenants", json={"name": "globex"}).json()
        asked: dict[str, Any] = {"model": "kvarn-demo", "extra_body": {"ignore_eos": True}}
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=tenant["admin_api_key"]["value"]) as theirs,
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as sdk,
        ):
            for attempt in range(5):  # the prompts are other ones each time: none is cached
                stream = theirs.completions.create(prompt=[7 + attempt] * 1000, max_tokens=1000, stream=True, **asked)
                next(iter(stream))
                rest = threading.Thread(target=list, args=(stream,))
                rest.start()
                answer = sdk.completions.create(prompt=[99 + attempt] * 1300, max_tokens=1, **asked)
                rest.join()
                found = explanation(server, answer.id)
                # Else others took the machine meanwhile, or the other answer had ended before.
                if found["cause"]["code"] not in ("slow steps", "long prompt"):
                    break
    assert found["cause"]["code"] == "queue: KV blocks", found["sentence"]
    assert found["cause"]["agent"] == "an answer of globex"
    assert found["sentence"].endswith(" went to waiting for KV blocks behind an answer of globex.")


def test_a_cold_adapter_is_named(server, sdk):
    """A large one, whose way from main memory into KV blocks takes longer than a token with it."""
    folder = Path(os.environ["KVARN_DATA_DIR"]) / "adapters" / "support-tone"
    write_adapter(folder, rank=1024)
    loaded = server.http.post("/v1/load_lora_adapter", json={"lora_name": "support-tone", "lora_path": str(folder)})
    assert loaded.status_code == 200, loaded.text
    try:
        answers = [sdk.completions.create(model="support-tone", prompt=[7], max_tokens=1) for _ in range(2)]
        cold, warm = (explanation(server, answer.id) for answer in answers)
    finally:
        server.http.post("/v1/unload_lora_adapter", json={"lora_name": "support-tone"})
    assert (cold["cause"]["code"], cold["cause"]["agent"]) == ("queue: adapter", "support-tone"), cold["sentence"]
    assert cold["sentence"].endswith(" went to loading the adapter support-tone.")
    assert warm["cause"]["code"] != "queue: adapter", warm["sentence"]


def write_adapter(folder: Path, rank: int) -> None:
    """An adapter of kvarn-demo of this rank, as PEFT writes it, which changes nothing."""
    import torch
    from safetensors.torch import load_file, save_file

    pirate = Path(str(files("kvarn") / "assets" / "adapters" / "pirate"))
    settings = json.loads((pirate / "adapter_config.json").read_text())
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "r": rank}))
    shapes = {name: tensor.shape for name, tensor in load_file(pirate / "adapter_model.safetensors").items()}
    sizes = {name: (rank, size[1]) if ".lora_A." in name else (size[0], rank) for name, size in shapes.items()}
    save_file({name: torch.zeros(size) for name, size in sizes.items()}, folder / "adapter_model.safetensors")
