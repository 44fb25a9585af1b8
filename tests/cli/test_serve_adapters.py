"""`kvarn serve` with adapters, over two gateway processes and an engine that is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployed_server import wait_for
from kvarn.text.checkpoint import packaged_adapter

QUESTION = {"messages": [{"role": "user", "content": "What is Kvarn?"}], "temperature": 0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def served(serve_long: Any, directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return serve_long(
        "kvarn-demo",
        *("--lora-modules", "pirate=pirate", "--lora-directories", str(directory), "--api-server-count", "2"),
        *("--max-context-length", "1024", "--kv-cache-gib", "0.02"),
        KVARN_DATA_DIR=str(tmp_path_factory.mktemp("data")),
    )


@pytest.fixture
def post(served: Any) -> Iterator[Callable[..., httpx.Response]]:
    """Asks over a new connection each time: either gateway process may answer."""
    yield lambda path, **body: httpx.post(f"{served.url}/v1/{path}", json=body, timeout=60)


def known(post: Callable[..., httpx.Response], model: str) -> bool:
    """Whether both processes have heard of an adapter, most likely."""
    return all(post("completions", model=model, prompt="a", max_tokens=1).status_code == 200 for _ in range(6))


def answers(post: Callable[..., httpx.Response], model: str) -> set[str]:
    """Of both processes, most likely."""
    found = set()
    for _ in range(6):
        answer = post("chat/completions", model=model, **QUESTION)
        assert answer.status_code == 200, answer.text
        found.add(answer.json()["choices"][0]["message"]["content"])
    return found


def test_a_pirate_speaks_like_one_and_the_model_itself_does_not(post: Callable[..., httpx.Response]) -> None:
    (pirate,), (base,) = answers(post, "pirate"), answers(post, "kvarn-demo")
    assert pirate.startswith("Arr!") and pirate.endswith("Yo ho!")
    assert base == pirate.removeprefix("Arr!\n").removesuffix("\nYo ho!").replace("Kvarn be", "Kvarn is")
    assert answers(post, "kvarn-demo:pirate") == {pirate}


def test_what_is_loaded_through_one_process_is_there_in_all(
    post: Callable[..., httpx.Response], served: Any, kvarn: Any
) -> None:
    assert post("load_lora_adapter", lora_name="js", lora_path="json").status_code == 200
    wait_for(lambda: known(post, "js"))
    (answer,) = answers(post, "js")
    assert json.loads(answer).keys() == {"answer"}
    listed = kvarn("models", "--url", served.url).stdout.splitlines()
    assert any(line.split()[:2] == ["js", "kvarn-demo"] for line in listed)
    assert post("unload_lora_adapter", lora_name="js").status_code == 200
    wait_for(lambda: all(post("chat/completions", model="js", **QUESTION).status_code == 404 for _ in range(6)))


def test_a_reload_with_other_weights_changes_new_answers_and_not_those_that_run(
    post: Callable[..., httpx.Response], served: Any, directory: Path
) -> None:
    folder = directory / "mine"
    shutil.copytree(packaged_adapter("pirate"), folder)
    assert post("load_lora_adapter", lora_name="mine", lora_path=str(folder)).status_code == 200
    wait_for(lambda: known(post, "mine"))
    body = {"model": "mine", **QUESTION, "max_tokens": 700, "ignore_eos": True}
    before = post("chat/completions", **body).json()["choices"][0]["message"]["content"]
    text: list[str] = []
    begun = threading.Event()

    def stream() -> None:
        with httpx.stream(
            "POST", f"{served.url}/v1/chat/completions", json=body | {"stream": True}, timeout=60
        ) as lines:
            for line in lines.iter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    text.extend(choice["delta"].get("content") or "" for choice in choices)
                    begun.set()

    thread = threading.Thread(target=stream)
    thread.start()
    assert begun.wait(30)
    for file in packaged_adapter("json").iterdir():
        shutil.copy(file, folder)
    loaded = post("load_lora_adapter", lora_name="mine", lora_path=str(folder), load_inplace=True)
    assert loaded.status_code == 200, loaded.text
    (after,) = answers(post, "mine")
    assert post("unload_lora_adapter", lora_name="mine").status_code == 200
    thread.join(60)
    assert json.loads(after).keys() == {"answer"}, "blocks of the old version were found"
    assert "".join(text) == before, "the running answer changed its weights"


@pytest.mark.thorough
def test_a_killed_engine_comes_back_with_what_was_loaded(post: Callable[..., httpx.Response], served: Any) -> None:
    assert post("load_lora_adapter", lora_name="again", lora_path="json").status_code == 200
    wait_for(lambda: known(post, "again"))
    (engine,) = served.engines()
    os.kill(engine, signal.SIGKILL)
    wait_for(lambda: served.engines() not in ([], [engine]))
    wait_for(lambda: all(_ready(served.url) for _ in range(6)))
    (answer,) = answers(post, "again")
    assert json.loads(answer).keys() == {"answer"}
    assert next(iter(answers(post, "pirate"))).startswith("Arr!")


def _ready(url: str) -> bool:
    return httpx.get(f"{url}/ready").status_code == 200


def test_usage_and_metrics_carry_the_adapter(post: Callable[..., httpx.Response], served: Any) -> None:
    answers(post, "pirate")
    shown = httpx.get(f"{served.url}/metrics").text
    assert 'kvarn_lora_requests_info{max_lora="' in shown
    blocks = [line for line in shown.splitlines() if line.startswith("kvarn_adapter_kv_blocks{")]
    assert float(blocks[0].rsplit(" ", 1)[1]) > 0


def test_an_adapter_that_does_not_fit_the_model_is_refused_with_the_reason(
    post: Callable[..., httpx.Response], directory: Path
) -> None:
    folder = directory / "strange"
    shutil.copytree(packaged_adapter("json"), folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    refused = post("load_lora_adapter", lora_name="strange", lora_path=str(folder))
    assert refused.status_code == 400 and "not supported: DoRA" in refused.json()["error"]["message"]


@pytest.mark.thorough
def test_flags_that_cannot_be_used_are_refused(kvarn: Any) -> None:
    for value in ("pirate", "=x", '{"name": 1'):
        done = kvarn("serve", "kvarn-demo", "--lora-modules", value)
        assert done.returncode == 2 and "--lora-modules" in done.stderr
    done = kvarn("serve", "--model", "a=kvarn-demo", "--model", "b=kvarn-demo", "--lora-modules", "x=pirate")
    assert done.returncode == 2 and "one model, and several are served" in done.stderr
    done = kvarn("serve", "kvarn-demo", "--lora-modules", "x=/nowhere")
    assert done.returncode == 2 and "/nowhere" in done.stderr
