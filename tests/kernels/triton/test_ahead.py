"""Kernels that are compiled before they are needed: all that plain serving launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiles import sample, thorough

ROOT = Path(__file__).parents[3]
DENSE = ("llama", "hidden_size=512", "intermediate_size=1536", "head_dim=64", "num_attention_heads=8")


def run_apart(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script of tests/support, without Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests" / "support")))
    return subprocess.run(
        [sys.executable, ROOT / "tests" / "support" / command[0], *command[1:]],
        env=environment | {"PYTHONPATH": paths} | variables,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize(
    "model",
    [sample(DENSE), thorough(("gemma2",)), ("deepseek-v2",), thorough(("qwen3-next",)), thorough(("Roberta",))],
    ids=lambda model: model[0],
)
def test_plain_serving_launches_no_kernel_that_was_not_compiled_ahead(model: tuple[str, ...]) -> None:
    run = run_apart("launched_kernels.py", *model)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_kernel_is_compiled_once_whoever_needs_it_first(tmp_path: Path) -> None:
    """A launch that comes while a thread compiles waits for it, and counts; later ones find it."""
    for compiled in (1, 0):  # the second process reads it from disk
        run = run_apart("compiled_in_threads.py", TRITON_CACHE_DIR=str(tmp_path))
        assert run.returncode == 0, run.stderr
        found = json.loads(run.stdout)
        assert (found["compiled"], found["launched"]) == (compiled, 2)
        assert 1 <= found["compiled"] + found["read"] <= 2
        assert found["first_uses"] <= 1
