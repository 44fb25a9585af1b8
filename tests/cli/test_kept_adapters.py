"""What belongs to a deployment: adapters loaded at run time, for replicas and versions that start later and while there
is none; the files that a version was deployed with; and a process that waits while there is no replica."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployed_server import SMALL, WAIT, done, status, wait_for
from kvarn.text.checkpoint import resolve_checkpoint

QUESTION = {"messages": [{"role": "user", "content": "What is Kvarn?"}], "temperature": 0, "max_tokens": 24}
PIRATE = {"lora_name": "mate", "lora_path": "pirate"}


def post(served: Any, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/{path}", json=body, timeout=120)


def speaks_like_a_pirate(served: Any, model: str = "mate") -> bool:
    answer = post(served, "chat/completions", model=model, **QUESTION)
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["choices"][0]["message"]["content"].startswith("Arr!"))


def replicas(kvarn: Any, served: Any) -> list[Any]:
    observed: list[Any] = status(kvarn, served, "kvarn-demo")["observed"]
    return observed


def test_an_adapter_of_a_sleeping_model_wakes_it_even_after_a_restart(kvarn: Any, serve: Any, tmp_path: Path) -> None:
    model = {"name": "kvarn-demo", "path": "kvarn-demo", "kv_cache_gib": 0.05, "max_context_length": 512}
    model["autoscale"] = {"min_replicas": 0, "max_replicas": 1, "idle_s": 1, "scale_in_delay_s": 0}
    (tmp_path / "kvarn.yaml").write_text(json.dumps({"models": [model]}))
    options = ("--config", str(tmp_path / "kvarn.yaml"))
    served = serve(*options, "--api-server-count", "2", KVARN_DATA_DIR=str(tmp_path))
    assert post(served, "load_lora_adapter", **PIRATE).status_code == 200
    wait_for(lambda: replicas(kvarn, served) == [])
    for _ in range(4):  # each connection goes to either process
        assert speaks_like_a_pirate(served)
    wait_for(lambda: replicas(kvarn, served) == [])
    served.process.terminate()
    served.process.wait()

    again = serve(*options, KVARN_DATA_DIR=str(tmp_path))
    assert replicas(kvarn, again) == []
    assert httpx.get(f"{again.url}/ready").status_code == 200, "a request starts the first replica"
    assert speaks_like_a_pirate(again)
    assert post(again, "unload_lora_adapter", lora_name="mate").status_code == 200
    assert post(again, "chat/completions", model="mate", **QUESTION).status_code == 404


@pytest.mark.thorough
def test_a_popular_model_that_sleeps_has_a_process_that_waits_and_takes_its_next_request(
    kvarn: Any, serve: Any, tmp_path: Path
) -> None:
    common = {"path": "kvarn-demo", "kv_cache_gib": 0.05, "max_context_length": 512}
    common["autoscale"] = {"min_replicas": 0, "max_replicas": 1, "idle_s": 1, "scale_in_delay_s": 0}
    config = {"models": [{"name": name, **common} for name in ("kvarn-demo", "other")], "fleet": {"warm_pool": 1}}
    (tmp_path / "kvarn.yaml").write_text(json.dumps(config))
    served = serve("--config", str(tmp_path / "kvarn.yaml"), KVARN_DATA_DIR=str(tmp_path))
    assert post(served, "completions", model="kvarn-demo", prompt="x", max_tokens=1).status_code == 200

    def waits() -> list[int]:
        """The process, once it waits."""
        engines: list[int] = served.engines()
        is_said = any("the engine is warm" in line for line in served.log)
        return engines if is_said and not replicas(kvarn, served) and len(engines) == 1 else []

    wait_for(lambda: waits() != [])
    (waiting,) = waits()
    assert post(served, "completions", model="kvarn-demo", prompt="x", max_tokens=1).status_code == 200
    wait_for(lambda: any("the engine is ready" in line and f"pid={waiting} " in line for line in served.log))
    decisions = httpx.get(f"{served.url}/v1/organization/deployments/decisions").json()["data"]
    reasons = [(each["model"], each["reason"]) for each in decisions if "a process waits" in each["reason"]]
    assert reasons and {model for model, _ in reasons} == {"kvarn-demo"}


@pytest.mark.thorough
def test_replicas_and_versions_that_come_later_have_it_and_files_that_change_are_not_served(
    kvarn: Any, serve: Any, tmp_path: Path
) -> None:
    served = serve("kvarn-demo", *SMALL, KVARN_DATA_DIR=str(tmp_path / "data"))
    url = ("--url", served.url)
    assert post(served, "load_lora_adapter", **PIRATE).status_code == 200
    own = tmp_path / "own"
    shutil.copytree(resolve_checkpoint("kvarn-demo"), own)
    template = tmp_path / "template.jinja"
    template.write_text(json.loads((own / "tokenizer_config.json").read_text()).get("chat_template") or _template(own))
    done(kvarn("deploy", "kvarn-demo", "--path", str(own), "--set", f"chat_template={template}", *WAIT, *url))
    assert [each["version"] for each in replicas(kvarn, served)] == [1]
    assert speaks_like_a_pirate(served) and not speaks_like_a_pirate(served, "kvarn-demo")
    assert "{" in status(kvarn, served, "kvarn-demo")["settings"]["chat_template"]

    versions = "organization/deployments/versions?model=kvarn-demo"
    (version,) = httpx.get(f"{served.url}/v1/{versions}").json()["data"]
    assert set(version["fingerprints"]) == {"checkpoint"}
    config = (own / "generation_config.json").read_text()
    (own / "generation_config.json").write_text(config + " ")
    done(kvarn("scale", "kvarn-demo", "2", *url))
    wait_for(lambda: "have changed since" in (status(kvarn, served, "kvarn-demo")["problem"] or ""))
    assert speaks_like_a_pirate(served)
    (own / "generation_config.json").write_text(config)
    done(kvarn("scale", "kvarn-demo", "2", *WAIT, *url))
    assert status(kvarn, served, "kvarn-demo")["problem"] is None
    assert all(speaks_like_a_pirate(served) for _ in range(4))


def _template(directory: Path) -> str:
    return (directory / "chat_template.jinja").read_text()
