"""A model that starts without replicas, as one that sleeps until it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest


@pytest.mark.thorough
def test_a_server_whose_only_model_sleeps_starts_is_ready_and_answers(serve, tmp_path: Path) -> None:
    model = {"name": "kvarn-demo", "path": "kvarn-demo", "kv_cache_gib": 0.05, "max_context_length": 512}
    model["autoscale"] = {"min_replicas": 0, "max_replicas": 1}
    (tmp_path / "kvarn.yaml").write_text(json.dumps({"models": [model]}))
    served = serve("--config", str(tmp_path / "kvarn.yaml"))
    assert httpx.get(f"{served.url}/ready").status_code == 200
    body = {"model": "kvarn-demo", "prompt": "x", "max_tokens": 3}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
