"""Chat templates that would take all time or all memory: the chat gets an error, everybody else an answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from fake_replica import GENERATE_CARD, TEMPLATE, FakeReplica, write_checkpoint
from kvarn.answers.moderation.checks import Moderation
from kvarn.catalog.models import ServedModel
from kvarn.config.model import ModelConfig
from kvarn.config.platform import SafetyConfig
from kvarn.safety.moderator import Claim, ModerationAwayError
from profiles import THOROUGH, thorough
from template_bombs import BOMBS

MIB = 1024 * 1024
ENDS_OTHERWISE = {
    "recursive macro": "invalid_value",  # Python's own bounds
    "recursive loop": "invalid_value",
    "long number": "invalid_value",
    "text written for ever": "context_length_exceeded",
}
SOURCES = {
    "bomb": "".join(f"{{% if bomb == {name!r} %}}{source}{{% endif %}}" for name, source in BOMBS.items()) + TEMPLATE,
    "always": BOMBS["loops"].replace("(n)", "(99999)"),
    "never": "{{ 10 ** (10 ** 10) }}",  # worked out when it is compiled
}
CHOSEN = [name for number, name in enumerate(BOMBS) if THOROUGH or name in ENDS_OTHERWISE or number % 10 == 0]
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def bomb_server(serve: Any, wait_for: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gateway with a harmless model, one with all the bombs, one that always goes off, and one that cannot start."""

    def prepare(server: Any) -> None:
        for name, source in SOURCES.items():
            model = ModelConfig(name=name, path=name)
            directory = write_checkpoint(tmp_path_factory.mktemp(name), source)
            server.configure(models=[*server.config.models, model])
            server.served[name] = ServedModel(name, model, [FakeReplica(GENERATE_CARD)], directory)

    with serve(prepare, wait_ready=False, client_work_timeout_s=1, client_work_memory_bytes=192 * MIB) as server:
        with server.client() as client:

            def settled(name: str) -> bool:
                state = client.get("/ready").json()["models"][name]
                return state["ready"] or "error" in state

            wait_for(lambda: all(map(settled, server.served)), "the models to be ready or broken", 60)
        yield server


def chat(model: str, bomb: str | None = None) -> dict[str, Any]:
    chosen = {"chat_template_kwargs": {"bomb": bomb, "n": 99_999}} if bomb else {}
    return {"model": model, "messages": MESSAGES, "max_tokens": 4, **chosen}


def peak_memory() -> int:
    """Most resident memory of this process since it was last asked, in bytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    Path("/proc/self/clear_refs").write_text("5")
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("bomb", CHOSEN)
def test_a_bomb_harms_nobody(bomb_server, bomb):
    peak_memory()
    before = peak_memory()
    with bomb_server.client() as client, bomb_server.client() as other, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(client.post, "/v1/chat/completions", json=chat("bomb", bomb))
        for _ in range(3):
            assert other.get("/health", timeout=60).status_code == 200
            harmless = other.post("/v1/chat/completions", json=chat("tiny"))
            assert harmless.status_code == 200, harmless.text
        error = answer.result().json()["error"]
        assert answer.result().status_code == 400 and error["type"] == "invalid_request_error", error
        assert error["code"] == ENDS_OTHERWISE.get(bomb, "template_limit_exceeded"), error
        after = client.post("/v1/chat/completions", json=chat("bomb"))
        assert after.status_code == 200, after.text
    assert peak_memory() - before < 100 * MIB, "the gateway holds none of what a template makes"


PATHS = {
    "/v1/chat/completions": chat("always"),
    "/v1/chat/completions?": {**chat("always"), "stream": True},
    "/tokenize": {"model": "always", "messages": MESSAGES},
    "/v1/responses": {"model": "always", "input": "hi", "truncation": "auto"},
    "/v1/responses/input_tokens": {"model": "always", "input": "hi"},
    "/v1/messages": chat("always"),
    "/v1/messages/count_tokens": {"model": "always", "messages": MESSAGES},
}
OFTEN = ("/v1/chat/completions", "/v1/responses", "/v1/messages/count_tokens")


@pytest.mark.parametrize("path", [path if path in OFTEN else thorough(path) for path in PATHS])
def test_every_path_that_renders_is_bounded(bomb_server, path):
    with bomb_server.client() as client:
        answer = client.post(path, json=PATHS[path])
        assert answer.status_code == 400, answer.text
        assert "within 1 s (gateway.client_work_timeout_s)" in answer.json()["error"]["message"]


def test_a_template_that_cannot_be_compiled_takes_only_its_own_model(bomb_server):
    with bomb_server.client() as client:
        answer = client.post("/v1/chat/completions", json=chat("never"))
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "model_broken"
        assert "cannot be compiled within 1 s" in answer.json()["error"]["message"]
        assert client.post("/v1/chat/completions", json=chat("tiny")).status_code == 200


def test_a_model_that_moderates_is_bounded_too(bomb_server):
    gateway, config = bomb_server.gateway, SafetyConfig(model="always", moderate_input=True)
    moderation = Moderation(config, gateway.models, gateway.text, gateway.moderation.prompts)
    with pytest.raises(ModerationAwayError, match=r"within (1|10) s"):
        bomb_server.do(moderation.moderator.judge("hi", Claim(tenant="anybody")))


def test_a_tenants_bombs_do_not_hold_up_other_tenants_at_the_same_template(bomb_server, wait_for):
    ended: list[str] = []

    def ask(client: httpx.Client, name: str, bomb: str | None) -> None:
        client.post("/v1/chat/completions", json=chat("bomb", bomb))
        ended.append(name)

    with bomb_server.add_tenant("red") as red, bomb_server.add_tenant("blue") as blue, ThreadPoolExecutor(4) as threads:
        bombs = [threads.submit(ask, red, "red", "loops") for _ in range(3)]
        wait_for(lambda: red.get("/load").json()["server_load"] == 3, "the bombs to be taken in")
        ask(blue, "blue", None)
    assert [bomb.exception() for bomb in bombs] == [None] * 3
    assert "red" in ended[ended.index("blue") :], ended


def test_chats_of_one_model_wait_for_their_turn_at_its_template(bomb_server):
    with bomb_server.client() as client, ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: client.post("/v1/chat/completions", json=chat("tiny")), range(64)))
    assert [answer.status_code for answer in answers] == [200] * 64


def test_a_gateway_survives_the_end_of_its_processes_and_leaves_none_behind(serve):
    with serve() as server, server.client() as client:
        processes = server.served["tiny"].text.chat_template.processes
        for _ in range(3):
            (killed,) = processes.pids
            os.kill(killed, signal.SIGKILL)
            assert client.post("/v1/chat/completions", json=chat("tiny")).status_code == 200
            assert processes.pids != [killed]
        (last,) = processes.pids
        assert Path(f"/proc/{last}").exists()
        assert server.served["vec"].text.chat_template.processes.pids, "it has a template too"
    assert not Path(f"/proc/{last}").exists()
