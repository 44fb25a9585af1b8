"""The small benchmarks still fit the engine they measure: each runs, briefly, and prints its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kvarn

ROOT = Path(__file__).parents[2]
DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (["step_overhead", "--batches", "2", "--rounds", "1", "--steps", "6"], "schedule"),
        (["decode_step", "--model", str(DEMO), "--steps", "2"], "ms"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_benchmark_runs(command: list[str], printed: str) -> None:
    program = [sys.executable, "-m", f"benchmarks.{command[0]}", *command[1:]]
    run = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert printed in run.stdout
