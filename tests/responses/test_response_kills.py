"""Background responses of gateways that are killed: each is made to its end, once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway_process import answer_length
from kvarn.config.schema import KvarnConfig
from ledger_kills import Gateway
from silent_search import SearchServer


def settings(database_url: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "gateway": {"port": 0, "drain_timeout_s": 0.5},
        "data_dir": str(tmp_path / "data"),
        "models": [{"name": "tiny", "path": "tiny"}, {"name": "vec", "path": "vec"}],
        "store": {"url": database_url, "timeout_s": 20},
        "responses": {"lease_s": 3},
    }


@pytest.fixture
def gateway(database_url: str, checkpoint: Path, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway in a process of its own, on each database."""
    made = Gateway(KvarnConfig.model_validate(settings(database_url, tmp_path)), checkpoint, tmp_path)
    try:
        yield made
    finally:
        made.close()


def client_of(gateway: Gateway) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=30)


def queue(client: httpx.Client, text: str, **body: Any) -> str:
    answer = client.post("/v1/responses", json={"model": "tiny", "input": text, "background": True, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def ended(client: httpx.Client, response_id: str) -> dict[str, Any]:
    """The response, once it has ended."""
    deadline = time.monotonic() + 60
    while True:
        found: dict[str, Any] = client.get(f"/v1/responses/{response_id}").json()
        if found["status"] not in ("queued", "in_progress"):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_every_response_comes_to_its_end_where_its_gateway_is_killed(gateway):
    draw = random.Random(4)
    queued: dict[str, str] = {}
    in_conversation: list[tuple[str, str]] = []
    gateway.start()
    with client_of(gateway) as client:
        for number in range(12):  # some have ended, some are being written, some have just been queued
            if number % 4 == 0:
                conversation = client.post("/v1/conversations", json={}).json()["id"]
                in_conversation.append((conversation, queue(client, "y", conversation=conversation)))
            queued[queue(client, "x" * number)] = "x" * number
            time.sleep(draw.uniform(0, 0.03))
    gateway.end()
    gateway.start()
    with client_of(gateway) as client:
        for response_id, text in queued.items():
            made = ended(client, response_id)
            assert made["status"] == "completed", made["error"]
            prompt = client.post("/v1/responses/input_tokens", json={"input": text}).json()["input_tokens"]
            assert made["output"][0]["content"][0]["text"] == "x" * answer_length(prompt)
            items = client.get(f"/v1/responses/{response_id}/input_items").json()["data"]
            assert [item["content"][0]["text"] for item in items] == [text]
        for conversation, response_id in in_conversation:
            assert ended(client, response_id)["status"] == "completed"
            items = client.get(f"/v1/conversations/{conversation}/items?order=asc").json()["data"]
            assert [item["role"] for item in items] == ["user", "assistant"]
            more = client.post("/v1/responses", json={"model": "tiny", "input": "z", "conversation": conversation})
            assert more.status_code == 200, more.text


@pytest.fixture
def search() -> Iterator[SearchServer]:
    server = SearchServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()
    thread.join(60)


@pytest.mark.thorough
def test_a_tool_whose_gateway_is_killed_is_not_called_again(
    database_url: str, checkpoint: Path, tmp_path: Path, search: SearchServer
):
    address = f"http://127.0.0.1:{search.server_address[1]}/search"
    config = settings(database_url, tmp_path)
    config["tools"] = {"servers": [{"name": "web", "kind": "web_search", "url": address}]}
    gateway = Gateway(KvarnConfig.model_validate(config), checkpoint, tmp_path)
    try:
        gateway.start()
        with client_of(gateway) as client:
            response_id = queue(client, "Search.", tools=[{"type": "web_search"}])
            assert search.first.wait(60)
        gateway.end()
        gateway.start()
        with client_of(gateway) as client:
            made = ended(client, response_id)
    finally:
        gateway.close()
    assert made["status"] == "completed", made
    call, message = made["output"]
    assert (call["type"], call["status"]) == ("web_search_call", "failed")
    assert message["content"][0]["text"].startswith("x") and len(search.asked) == 1
