"""`kvarn rollout` against a running server; a rollout outlives the server's process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

Serving = Callable[[Path, dict[str, Any]], AbstractContextManager[Any]]


def _rollout(url: str, *arguments: str, fails: bool = False) -> str:
    command = [str(Path(sys.executable).with_name("kvarn")), "rollout", *arguments, "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


@pytest.mark.thorough
def test_a_rollout_is_started_paused_kept_over_a_restart_and_rolled_back(tmp_path: Path, serving: Serving) -> None:
    common = {"path": "kvarn-demo", "kv_cache_gib": 0.05, "threads": 1}
    configuration: dict[str, Any] = {
        "models": [{"name": "v1", "aliases": ["chat"], **common}, {"name": "v2", **common}],
        "gateway": {"port": 0, "drain_timeout_s": 2},
        "data_dir": str(tmp_path / "data"),
        "rollout": {"steps": [0.5, 1.0], "step_min_s": 0, "check_interval_s": 0.2},
    }

    def arms(server: Any) -> set[str | None]:
        body = {"model": "chat", "prompt": "a", "max_tokens": 1}
        return {server.http.post("/v1/completions", json=body).headers.get("x-kvarn-arm") for _ in range(30)}

    with serving(tmp_path, configuration) as server:
        assert "no rollouts" in _rollout(server.url, "status")
        assert "is not a served model" in _rollout(server.url, "start", "v1", "v9", fails=True)
        settings = ("--set", "shadow_requests=0", "--set", "golden_prompts=0", "--set", "step_requests=100000")
        assert "v2 answers 0% (start)" in _rollout(server.url, "start", "v1", "v2", *settings)
        server.wait_until(lambda: arms(server) == {"v1", "v2"}, "the first step")
        assert "(pause)" in _rollout(server.url, "pause", "v1")
        assert "has ended" not in _rollout(server.url, "status", "v1")

    with serving(tmp_path, configuration) as server:
        server.wait_until(lambda: arms(server) == {"v1", "v2"}, "the rollout after a restart")
        found = json.loads(_rollout(server.url, "status", "v1", "--json"))
        assert (found["phase"], found["paused"], found["share"]) == ("canary", True, 0.5)
        assert [entry["action"] for entry in found["log"]] == ["start", "step", "pause"]
        assert "requests failed" in _rollout(server.url, "status", "v1")
        assert "v2 answers 0% (rollback)" in _rollout(server.url, "rollback", "v1")
        assert arms(server) == {None}
        assert "has ended" in _rollout(server.url, "promote", "v1", fails=True)
