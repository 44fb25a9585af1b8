"""Every benchmark still fits what it measures: each runs, briefly, and prints its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kvarn

ROOT = Path(__file__).parents[2]
DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
SMOKE = {
    "chat_template": ("--rounds 1 --renderings 10", "in a process of its own"),
    "decode_step": (f"--model {DEMO} --steps 2", "ms"),
    "device_idle": ("--rows 4 --steps 10", "2 in flight"),
    "gateway_overhead": ("--streams 1 --rounds 1", "µs a token"),
    "kernels.attention": ("--kv bfloat16 --only decode --seconds 0.01 --threads 1", "GB/s"),
    "kernels.instruction_sets": ("--rounds 1", "avx2"),
    "kernels.linear": ("--rows 1 --threads 1 --layers 1 --rounds 1", "GB/s"),
    "kernels.linear_integer": ("--rows 1 --threads 1 --seconds 0.01", "int4"),
    "kernels.sampling": ("--rows 1 --vocab 1000 --rounds 1 --threads 1", "top-p"),
    "ledger": ("--requests 200 --rounds 1", "events a second"),
    "limits": ("--clients 1 --requests 20 --rounds 1 --redis none --budget", "with settling"),
    "quality": ("--every 60", "int8, KV int8"),
    "request_path": ("", "functions of gateway, serving and replica"),
    "run": ("--shape demo --workloads W1", "W1"),
    "startup": ("--runs 1", "first token"),
    "static_batching": (
        "--shape demo --batch 2 --requests 4 --rounds 1 --prompt 16:32 --output 8:16",
        "continuous",
    ),
    "step_overhead": ("--batches 2 --rounds 1 --steps 6", "schedule"),
}
"""What each is asked for, and a word of what it prints; `overload`, `proxies` and `peers` have tests of their own."""


@pytest.mark.smoke
@pytest.mark.parametrize("name", SMOKE)
def test_a_benchmark_runs(name: str) -> None:
    arguments, printed = SMOKE[name]
    program = [sys.executable, "-m", f"benchmarks.{name}", *arguments.split()]
    run = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr[-2000:]
    assert printed in run.stdout


def test_every_benchmark_has_a_smoke_form() -> None:
    """Modules with a command line of their own."""
    folder = ROOT / "benchmarks"
    programs = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for pattern in ("*.py", "kernels/*.py")
        for path in folder.glob(pattern)
        if "__main__" in path.read_text(encoding="utf-8")
    }
    assert programs == {*SMOKE, "models"}
