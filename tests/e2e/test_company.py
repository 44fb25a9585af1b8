"""The platform as a company runs it: keys, tenants, limits, conversations, batches, the ledger. Once with nothing else
running, once on PostgreSQL, Redis and Kafka: the configuration is all that differs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

CHAT = "kvarn-demo"
START_S = 120.0
MESSAGES = [{"role": "user", "content": "What is Kvarn?"}]


@dataclass
class Platform:
    """A server of one's own, which can be killed and started again."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    url: str = ""

    def start(self) -> None:
        log = self.folder / "log"
        offset = log.stat().st_size if log.exists() else 0
        command = [Path(sys.executable).with_name("kvarn"), "serve", "--config", self.folder / "kvarn.yaml"]
        ours = {name: value for name, value in os.environ.items() if name != "KVARN_DATA_DIR"}  # the file says where
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=ours, start_new_session=True)
        deadline = time.monotonic() + START_S
        while not (found := re.search(r"at (http://[\d.:]+) \(ready", log.read_text()[offset:])):
            assert self.process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.05)
        self.url = found[1]

    def end(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(60)

    @property
    def admin_key(self) -> str:
        return (self.folder / "data" / "bootstrap-admin-key").read_text().strip()

    def http(self, key: str) -> httpx.Client:
        return httpx.Client(base_url=f"{self.url}/v1", headers={"authorization": f"Bearer {key}"}, timeout=60)

    def sdk(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def platform(database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Platform]:
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
    (tmp_path / "kvarn.yaml").write_text(json.dumps(configuration))  # JSON is YAML
    platform = Platform(tmp_path)
    platform.start()
    yield platform
    if platform.process is not None and platform.process.poll() is None:
        platform.end(signal.SIGTERM)


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


def eventually(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.1)


def test_a_company_s_day(platform: Platform):
    admin = platform.http(platform.admin_key)
    assert httpx.post(f"{platform.url}/v1/chat/completions", json={}).status_code == 401
    project = admin.post("/organization/projects", json={"name": "search"}).json()["id"]
    other = admin.post("/organization/projects", json={"name": "support"}).json()["id"]
    key, other_key = made_key(admin, project), made_key(admin, other)
    user, stranger = platform.sdk(key), platform.sdk(other_key)

    whole = user.chat.completions.create(model=CHAT, messages=MESSAGES, max_tokens=16)
    assert whole.usage is not None
    stream = user.chat.completions.create(
        model=CHAT, messages=MESSAGES, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    *_, streamed = (chunk.usage for chunk in stream if chunk.usage is not None)
    first = user.responses.create(model=CHAT, input="What is Kvarn?", max_output_tokens=16)
    second = user.responses.create(model=CHAT, input="And a mill?", previous_response_id=first.id, max_output_tokens=16)
    with pytest.raises(openai.NotFoundError):
        stranger.responses.retrieve(second.id)
    seen = [whole.usage.prompt_tokens, streamed.prompt_tokens, first.usage.input_tokens, second.usage.input_tokens]
    out = [
        whole.usage.completion_tokens,
        streamed.completion_tokens,
        first.usage.output_tokens,
        second.usage.output_tokens,
    ]
    expected = (4, sum(seen), sum(out))
    eventually(lambda: tokens_on_the_ledger(admin, project) == expected, f"{expected} on the ledger")
    assert tokens_on_the_ledger(admin, other) == (0, 0, 0)

    platform.end(signal.SIGKILL)
    platform.start()
    admin, user = platform.http(platform.admin_key), platform.sdk(key)
    assert user.responses.retrieve(second.id).output_text == second.output_text
    assert tokens_on_the_ledger(admin, project) == expected, "what was on the ledger is there after a crash, once"

    key_id = next(each["id"] for each in admin.get(f"/organization/projects/{project}/api_keys").json()["data"])
    assert admin.delete(f"/organization/projects/{project}/api_keys/{key_id}").status_code == 200
    with pytest.raises(openai.AuthenticationError):
        user.models.list()
    acts = [entry["type"] for entry in admin.get("/organization/audit_logs").json()["data"]]
    assert {"project.created", "api_key.created", "api_key.deleted"} <= set(acts)


@pytest.mark.thorough
def test_limits_of_a_project_hold_and_say_when_to_come_back(platform: Platform):
    admin = platform.http(platform.admin_key)
    project = admin.post("/organization/projects", json={"name": "small"}).json()["id"]
    key = made_key(admin, project)
    limits = admin.get(f"/organization/projects/{project}/rate_limits").json()["data"]
    assert limits, "every served model has limits to set"
    chosen = next(each for each in limits if each["model"] == CHAT)
    path = f"/organization/projects/{project}/rate_limits/{chosen['id']}"
    assert admin.post(path, json={"max_requests_per_1_minute": 3}).status_code == 200
    user = platform.http(key)
    asked = {"model": CHAT, "messages": MESSAGES, "max_tokens": 2}
    answers = [user.post("/chat/completions", json=asked) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
    assert answers[2].headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(answers[3].headers["retry-after"]) <= 61
