"""Prompts: nowhere on disk and in no log, unless a project opted in; then sealed, and opened with the key alone."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from sqlalchemy import make_url
from typer.testing import CliRunner

from kvarn.cli.administration.prompts import app
from kvarn.config import extras
from kvarn.config.platform import SafetyConfig
from kvarn.config.schema import KvarnConfig
from kvarn.observe.logging import configure_logging
from kvarn.safety import prompt_log
from kvarn.safety.errors import SafetyError
from kvarn.safety.prompt_log import PromptLog
from kvarn.safety.sealing import Seal
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.repositories.prompt_samples import latest_samples
from new_tenants import create_organization

MARK = "zanzibar-quokka"
"""Words of a prompt, to be looked for everywhere."""


@pytest.fixture
def debug_log() -> Iterator[StringIO]:
    """All that the process logs, down to the smallest detail."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = StringIO()
    configure_logging("debug", stream)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the test's own client
    yield stream
    logging.getLogger("httpx").setLevel(logging.NOTSET)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("kvarn").setLevel(logging.NOTSET)


def ask_everything(client: httpx.Client) -> None:
    """Requests that carry the mark: answered, refused in every way, and lost."""
    message = {"role": "user", "content": f"tell me of {MARK}"}
    chat = {"model": "tiny", "messages": [message]}
    assert client.post("/v1/chat/completions", json=chat).status_code == 200
    assert client.post("/v1/chat/completions", json={**chat, "stream": True}).status_code == 200
    assert client.post("/v1/completions", json={"model": "tiny", "prompt": MARK}).status_code == 200
    assert client.post("/v1/moderations", json={"input": MARK}).status_code == 200
    assert client.post("/tokenize", json={"prompt": MARK}).status_code == 200
    assert client.post("/v1/embeddings", json={"model": "vec", "input": MARK}).status_code == 200
    for wrong in ({"n": 1000}, {"temperature": MARK}, {"messages": [{"role": MARK, "content": "x"}]}):
        assert client.post("/v1/chat/completions", json={**chat, **wrong}).status_code == 400
    for unknown in (MARK, f"it's {MARK}"):
        assert client.post("/v1/chat/completions", json={**chat, unknown: 1}).status_code == 200
    assert client.get("/v1/files", params={f"it's {MARK}": 1}).status_code == 200
    broken = f'{{"model": "tiny", "messages": ["{MARK}'
    assert client.post("/v1/chat/completions", content=broken, headers={"content-type": "application/json"}).is_error
    client.get(f"/v1/nowhere/{MARK}?q={MARK}")


def files_with(directory: Path, words: str) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.is_file() and words.encode() in path.read_bytes()]


def test_prompts_reach_neither_disk_nor_log(server, client, debug_log, capfd):
    ask_everything(client)
    server.chat.lose_after = 2
    body = {"model": "tiny", "messages": [{"role": "user", "content": MARK}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 503

    def fail(request: Any, hold: Any = None) -> Any:
        raise RuntimeError("broken")

    server.chat.generate = fail
    assert client.post("/v1/chat/completions", json=body).status_code == 500
    server.do(server.gateway.moderation.prompts.flush())
    data = Path(server.config.data_dir)
    assert (data / "kvarn.db").exists() and files_with(data, MARK) == []
    assert "answered" in debug_log.getvalue() and "RuntimeError: broken" in debug_log.getvalue()
    assert MARK not in debug_log.getvalue() + "".join(capfd.readouterr())


def test_a_project_that_opted_in_is_kept_sealed_and_shown_to_operators(serve, tmp_path):
    with serve(config={"data_dir": str(tmp_path / "own")}) as server:
        open_tenant = server.add_tenant("open", log_prompts=True)
        closed_tenant = server.add_tenant("closed")
        content = {"model": "tiny", "messages": [{"role": "user", "content": f"open {MARK}"}]}
        assert open_tenant.post("/v1/chat/completions", json=content, headers={"x-request-id": "r1"}).status_code == 200
        closed = {"model": "tiny", "messages": [{"role": "user", "content": f"closed {MARK}"}]}
        assert closed_tenant.post("/v1/chat/completions", json=closed).status_code == 200
        assert open_tenant.post("/v1/completions", json={"model": "tiny", "prompt": list(b"ids")}).status_code == 200
        server.do(server.gateway.moderation.prompts.flush())
        data = Path(server.config.data_dir)
        assert files_with(data, MARK) == []
        key = data / "prompts.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600

        command = CliRunner(env={"KVARN_DATA_DIR": str(data)})
        shown = command.invoke(app, ["show"])
        assert shown.exit_code == 0, shown.output
        ids, chat = [json.loads(line) for line in shown.stdout.splitlines()]
        assert ids["input"] == {"prompt": ["ids"]}
        assert chat["input"] == {"messages": content["messages"]} and chat["request"] == "r1"
        assert chat["project"] == server.authenticator.principals["open"].project_id
        one = command.invoke(app, ["show", "--request", "r1", "--project", chat["project"]])
        assert len(one.stdout.splitlines()) == 1

        key.write_bytes(Fernet.generate_key())
        unread = command.invoke(app, ["show"])
        assert unread.exit_code == 0 and MARK not in unread.stdout
        assert "key file" in json.loads(unread.stdout.splitlines()[0])["error"]


def config_of(directory: Path, **safety: Any) -> KvarnConfig:
    return KvarnConfig(data_dir=str(directory), safety=SafetyConfig(**safety))


async def test_a_share_is_kept(store, tmp_path):
    principal = await create_organization(store, "one")
    opted_in = replace(principal, log_prompts=True)
    draws = iter([0.1, 0.9, 0.2, 0.6])
    log = PromptLog(config_of(tmp_path, log_prompts_sample=0.5), store, lambda: next(draws))
    for number in range(4):
        log.offer(opted_in, f"r{number}", "tiny", lambda number=number: {"prompt": number})
    log.offer(principal, "never", "tiny", lambda: pytest.fail("the project did not opt in"))
    await log.flush()
    kept = await latest_samples(store, 10)
    assert [sample.request_id for sample in kept] == ["r2", "r0"]
    await log.close()


async def test_answers_that_are_lost_are_counted_without_their_prompts(store, tmp_path, monkeypatch):
    principal = replace(await create_organization(store, "one"), log_prompts=True)

    async def fail(*_: Any) -> None:
        raise StoreError("broken")

    monkeypatch.setattr(prompt_log, "add_answers", fail)
    log = PromptLog(config_of(tmp_path), store)
    for number in range(3):
        log.offer(principal, f"r{number}", "tiny", lambda: {"prompt": "x"}, f"use_{number}")
    log.answered("use_0", "y")
    await log.flush()
    assert log.dropped == 1 and len(await latest_samples(store, 10)) == 3
    await log.close()


async def test_what_comes_faster_than_it_can_be_written_is_dropped_and_counted(store, tmp_path):
    principal = replace(await create_organization(store, "one"), log_prompts=True)
    log = PromptLog(config_of(tmp_path), store)
    for number in range(1000):
        log.offer(principal, f"r{number}", "tiny", lambda: {"prompt": "x" * 100})
    assert log.dropped == 1000 - 256
    log.offer(principal, "large", "tiny", lambda: {"prompt": "x" * (64 << 20)})
    assert log.dropped == 1000 - 255
    await log.close()
    assert len(await latest_samples(store, 2000)) == 256


async def test_a_database_that_is_away_costs_samples_and_nothing_else(tmp_path, store):
    principal = replace(await create_organization(store, "one"), log_prompts=True)
    away = Store(make_url("postgresql+asyncpg://nobody@127.0.0.1:1/none"), timeout_s=1)
    log = PromptLog(config_of(tmp_path), away)
    log.offer(principal, "r", "tiny", lambda: {"prompt": "x"})
    await log.flush()
    assert log.dropped == 1
    await log.close()
    await away.close()


def test_keys_are_shared_rotated_and_checked(tmp_path):
    path = tmp_path / "keys"
    old, new = Fernet.generate_key(), Fernet.generate_key()
    path.write_bytes(old)
    config = config_of(tmp_path / "data", prompt_key_file=str(path))
    sealed = Seal.load(config).seal(b"x")
    path.write_bytes(new + b"\n" + old + b"\n")
    assert Seal.load(config).open(sealed) == b"x"
    path.write_bytes(new)
    with pytest.raises(SafetyError, match="not in the key file"):
        Seal.load(config).open(sealed)
    path.write_text("short")
    with pytest.raises(SafetyError, match="Fernet keys"):
        Seal.load(config)
    path.unlink()
    with pytest.raises(SafetyError, match="cannot read"):
        Seal.load(config)


def test_a_project_cannot_allow_what_would_need_a_missing_extra(client, tmp_path, monkeypatch):
    project = client.get("/v1/organization/projects").json()["data"][0]["id"]
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    refused = client.post(f"/v1/organization/projects/{project}", json={"log_prompts": True})
    assert refused.status_code == 400 and "kvarn[encryption]" in refused.json()["error"]["message"]
    with pytest.raises(SafetyError, match=r"kvarn\[encryption\]"):
        Seal.load(config_of(tmp_path))
