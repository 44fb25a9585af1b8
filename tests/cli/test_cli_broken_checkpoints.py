"""`kvarn serve` of a checkpoint that cannot be served ends by itself, with the reason in its last line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import kvarn as package

DEMO = Path(package.__file__).parent / "assets" / "kvarn-demo"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the packaged model that a test may damage."""
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


@pytest.mark.thorough
def test_a_wrong_number_of_layers_is_named(kvarn, checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**9}))
    check_refused(kvarn("serve", str(checkpoint), "--port", "0"), "config.json: num_hidden_layers is 1000000000")


@pytest.mark.thorough
def test_a_broken_text_file_is_named(kvarn, checkpoint):
    (checkpoint / "generation_config.json").write_text('{"temperature": "hot"}')
    check_refused(kvarn("serve", str(checkpoint), "--port", "0"), "generation_config.json: temperature is 'hot'")


def test_a_cache_larger_than_the_machine_says_what_there_is(kvarn):
    done = kvarn("serve", "--port", "0", "--kv-cache-gib", "500000")
    check_refused(done, "A KV cache of 500000 GiB does not fit into this machine's memory: it has")
    assert "Lower kv_cache_gib" in done.stderr.splitlines()[-1]


def check_refused(done, reason: str) -> None:
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert reason in last
