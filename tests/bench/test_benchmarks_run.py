"""Every benchmark still fits what it measures: each runs, briefly, and prints its figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvarn

ROOT = Path(__file__).parents[2]
DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
SMOKE = {
    "adapters": ("--smoke --threads 1", "base-only decodes"),
    "chat_template": ("--rounds 1 --renderings 10", "in a process of its own"),
    "decode_step": (f"--model {DEMO} --steps 2 --single-calls", "single calls: median"),
    "device_idle": ("--rows 4 --steps 10", "2 in flight"),
    "disaggregation": ("--rounds 1 --bursts 1 --burst 1 --prompt 300 --streams 1 --every-s 0.1", "together"),
    "failover": ("--events 1 --replicas 2 --every-s 0.5 --streams 3", "0 lost or other"),
    "gateway_overhead": ("--streams 1 --rounds 1", "µs a token"),
    "golden_prompts": ("--flips 2 --prompts 1 --sets avx2", "largest mean gap"),
    "kernels.attention": ("--kv bfloat16 --only decode --seconds 0.01 --threads 1", "GB/s"),
    "kernels.instruction_sets": ("--sets avx2 --rounds 1", "avx2"),
    "kernels.linear": ("--rows 1 --threads 1 --layers 1 --rounds 1", "GB/s"),
    "kernels.linear_integer": ("--rows 1 --threads 1 --seconds 0.01", "int4"),
    "kernels.sampling": ("--rows 1 --vocab 1000 --rounds 1 --threads 1", "top-p"),
    "kernels.tiles": ("--kernels bfloat16 attention --rows 8 --prompts 64", "peak  binds"),
    "kv_tiers": ("--requests 6 --rounds 1 --context 500", "restarted"),
    "ledger": ("--requests 200 --rounds 1", "events a second"),
    "limits": ("--clients 1 --requests 20 --rounds 1 --redis none --budget", "with settling"),
    "one_stream": ("--shape demo --rounds 1", "medians:"),
    "quality": ("--every 60", "int8, KV int8"),
    "request_path": ("", "functions of gateway, answers, catalog, external, rollouts and replica"),
    "routing": ("--requests 40 --rate 20", "of ideal"),
    "run": ("--shape demo --workloads W1", "W1"),
    "speculation": ("--smoke --streams 1,2", "draft_model"),
    "startup": ("--runs 1", "first token"),
    "static_batching": (
        "--shape demo --batch 2 --requests 4 --rounds 1 --prompt 16:32 --output 8:16",
        "continuous",
    ),
    "step_overhead": ("--batches 2 --rounds 1 --steps 6", "schedule"),
    "structured_output": ("--smoke", "fast-forward:"),
}
"""What each is asked for, and a word of what it prints; `overload`, `proxies`, `peers` and `schema_suite` have tests of
their own."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the benchmarks keep what they keep: not in the user's home, whose database may be a newer Kvarn's."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.smoke
@pytest.mark.parametrize("name", SMOKE)
def test_a_benchmark_runs(name: str, home: Path) -> None:
    arguments, printed = SMOKE[name]
    program = [sys.executable, "-m", f"benchmarks.{name}", *arguments.split()]
    environment = os.environ | {"HOME": str(home)}
    run = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
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
    assert programs == {*SMOKE, "models", "schema_suite"}
