"""The platform as a company runs it: keys, tenants, limits, conversations, batches, the ledger. Once with nothing else
running, once on PostgreSQL, Redis and Kafka: the configuration is all that differs."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

CHAT = "kvarn-demo"
START_S = 120.0
MESSAGES = [{"role": "user", "content": "What is Kvarn?"}]


class Platform:
    """A server on the test's database, which is started again and again: `with platform.running() as server`."""

    def __init__(self, serving: Any, folder: Path, configuration: dict[str, Any]) -> None:
        self.running = partial(serving, folder, configuration)
        self.data = folder / "data"

    def http(self, server: Any, key: str = "") -> httpx.Client:
        key = key or (self.data / "bootstrap-admin-key").read_text().strip()
        return httpx.Client(base_url=f"{server.url}/v1", headers={"authorization": f"Bearer {key}"}, timeout=60)

    def sdk(self, server: Any, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def platform(database_url: str, tmp_path: Path, serving: Any, request: pytest.FixtureRequest) -> Platform:
    configuration: dict[str, Any] = {
        "models": [{"name": CHAT, "path": CHAT, "kv_cache_gib": 0.25, "threads": 1, "dtype": "float32"}],
        "gateway": {"port": 0, "drain_timeout_s": 2},
        "data_dir": str(tmp_path / "data"),
        "auth": {"mode": "keys"},
        "store": {"url": database_url},
        "metering": {"prices": [{"model": CHAT, "input_per_million": 1.0, "output_per_million": 4.0}]},
    }
    if database_url.startswith("postgresql"):
        configuration["limits"] = {"redis_url": request.getfixturevalue("redis_url")}
        configuration["metering"]["kafka"] = {"bootstrap_servers": request.getfixturevalue("kafka_servers")}
    return Platform(serving, tmp_path, configuration)


def made_key(admin: httpx.Client, project: str, **changes: Any) -> str:
    answer = admin.post(f"/organization/projects/{project}/api_keys", json={"name": "of a test", **changes})
    assert answer.status_code in (200, 201), answer.text
    key: str = answer.json()["value"]
    return key


def tokens_on_the_ledger(admin: httpx.Client, project: str) -> tuple[int, int, int]:
    """Requests, input and output tokens of a project in the last hour."""
    asked = {"start_time": int(time.time()) - 3600, "bucket_width": "1h", "group_by": ["project_id"], "limit": 24}
    answer = admin.get("/organization/usage/completions", params=asked)
    assert answer.status_code == 200, answer.text
    results = [row for bucket in answer.json()["data"] for row in bucket["results"] if row["project_id"] == project]
    sums = [sum(row[name] for row in results) for name in ("num_model_requests", "input_tokens", "output_tokens")]
    return sums[0], sums[1], sums[2]


def test_a_company_s_day(platform):
    with platform.running(killed=True) as server:
        admin = platform.http(server)
        assert server.http.post("/v1/chat/completions", json={}).status_code == 401
        project = admin.post("/organization/projects", json={"name": "search"}).json()["id"]
        other = admin.post("/organization/projects", json={"name": "support"}).json()["id"]
        key = made_key(admin, project)
        user, stranger = platform.sdk(server, key), platform.sdk(server, made_key(admin, other))

        ask: dict[str, Any] = {"model": CHAT, "messages": MESSAGES, "max_tokens": 16}
        whole = user.chat.completions.create(**ask).usage
        stream = user.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        *_, streamed = (chunk.usage for chunk in stream if chunk.usage is not None)
        first = user.responses.create(model=CHAT, input="What is Kvarn?", max_output_tokens=16)
        more: dict[str, Any] = {"previous_response_id": first.id, "max_output_tokens": 16}
        second = user.responses.create(model=CHAT, input="And a mill?", **more)
        with pytest.raises(openai.NotFoundError):
            stranger.responses.retrieve(second.id)
        tokens = [(usage.prompt_tokens, usage.completion_tokens) for usage in (whole, streamed)]
        tokens += [(each.usage.input_tokens, each.usage.output_tokens) for each in (first, second)]
        expected = (4, *map(sum, zip(*tokens, strict=True)))
        server.wait_until(lambda: tokens_on_the_ledger(admin, project) == expected, f"{expected} on the ledger")
        assert tokens_on_the_ledger(admin, other) == (0, 0, 0)
    with platform.running() as server:
        admin, user = platform.http(server), platform.sdk(server, key)
        assert user.responses.retrieve(second.id).output_text == second.output_text
        assert tokens_on_the_ledger(admin, project) == expected, "what was on the ledger is there after a crash, once"

        key_id = next(each["id"] for each in admin.get(f"/organization/projects/{project}/api_keys").json()["data"])
        assert admin.delete(f"/organization/projects/{project}/api_keys/{key_id}").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            user.models.list()
        acts = [entry["type"] for entry in admin.get("/organization/audit_logs").json()["data"]]
        assert {"project.created", "api_key.created", "api_key.deleted"} <= set(acts)
