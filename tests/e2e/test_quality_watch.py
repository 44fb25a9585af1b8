"""`kvarn serve` watches its replicas: healthy ones pass, weights that changed on disk between two starts are found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from kvarn.text.checkpoint import checkpoint_fingerprint

Serving = Callable[[Path, dict[str, Any]], AbstractContextManager[Any]]


def _flip_a_bit_that_the_fingerprint_does_not_see(directory: Path) -> None:
    path, before = directory / "model.safetensors", checkpoint_fingerprint(directory)
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 2 | 1, len(content), 65_537):
        content[place] ^= 0x40
        path.write_bytes(content)
        if checkpoint_fingerprint(directory) == before:
            return
        content[place] ^= 0x40
    raise AssertionError("the fingerprint sees each bit")


def test_a_checkpoint_that_changed_on_disk_is_found_and_healthy_replicas_pass(tmp_path, serving):
    directory = tmp_path / "checkpoint"
    shutil.copytree(str(files("kvarn") / "assets" / "kvarn-demo"), directory)
    model = {"name": "m", "path": str(directory), "kv_cache_gib": 0.05, "threads": 1, "replicas": 2}
    configuration: dict[str, Any] = {
        "models": [model],
        "gateway": {"port": 0, "drain_timeout_s": 2},
        "quality": {"interval_s": 0.5, "max_share": 1.0, "reference_file": str(tmp_path / "expected.json")},
    }
    with serving(tmp_path, configuration) as server:

        def passed() -> list[str]:
            lines = server.http.get("/metrics").text.splitlines()
            found = [line for line in lines if line.startswith("kvarn_quality_probes_total{")]
            assert all('result="equal"' in line for line in found), found
            return [line for line in found if float(line.split()[-1]) >= 2]

        server.wait_until(lambda: len(passed()) == 2, "two probes of each replica")
        assert "drifted" not in server.http.get("/ready").json()["models"]["m"]

    _flip_a_bit_that_the_fingerprint_does_not_see(directory)
    model["replicas"] = 1
    with serving(tmp_path, configuration) as server:
        server.wait_until(lambda: "drifted" in server.http.get("/ready").json()["models"]["m"], "the drift")
        server.wait_until(lambda: "action=alert" in server.log.read_text(), "the second probe after a restart")
        assert 'kvarn_replica_drifted{model="m"' in server.http.get("/metrics").text
        answer = server.http.post("/v1/completions", json={"model": "m", "prompt": "a", "max_tokens": 2})
        assert answer.status_code == 200
