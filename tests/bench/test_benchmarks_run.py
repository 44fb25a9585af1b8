"""Every benchmark still fits what it measures: each runs, briefly, and prints its figures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvarn
from browsers import no_browser

ROOT = Path(__file__).parents[2]
CONSOLE_TOOLS = ROOT / "console/node_modules/playwright-core"
DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
SMOKE = {
    "console_paint": ("--rows 2000 --rounds 1", r"overview +cold +\d+ +\d+"),
    "decode_step": (f"--model {DEMO} --steps 2 --single-calls", r"single calls: median \d"),
    "explanations": ("--shape tiny --requests 4 --concurrency 2 --alone 2", r"unexplained: median \d"),
    "failover": ("--events 1 --replicas 2 --every-s 0.5 --streams 3", r"[1-9]\d* tokens; 0 lost or other"),
    "gateway_overhead": ("--streams 1 --rounds 1", r"\d µs a token"),
    "ingestion": ("--mib 0.1 --kinds md", r"md +0\.1 +\d+( +\d+\.\d+){5}"),
    "injection": ("", r"\| all \| \d+ \| 3 of"),
    "kernels.attention": ("--kv bfloat16 --only decode --seconds 0.01 --threads 1", r"\d GB/s"),
    "kernels.linear": ("--form bfloat16 int4 --rows 1 --threads 1 --layers 1 --rounds 1", r"int4 +1 +\d"),
    "kernels.tiles": ("--kernels bfloat16 attention --rows 8 --prompts 64", r"attention, .+ \d+%  (loads|products)"),
    "limits": ("--clients 1 --requests 20 --rounds 1 --redis none --budget", r"\d µs with settling"),
    "live_view": ("", r"256 +10 +100000 +\d"),
    "observability_overhead": ("--smoke", r"on / off, by rounds: \d"),
    "proxies": (
        "--only direct,kvarn --rounds 1 --seconds 2 --streams 2 --many 4",
        r"kvarn: TTFT \d",
    ),
    "quality": ("--every 60", r"int8, KV int8 \| \d+ of \d+"),
    "request_path": ("", r"token: +\d"),
    "response_cache": ("--questions 120 --bound 0.2", r"gate \(Kvarn's\) \| \d"),
    "retrieval": (
        "--sets generated --pages 3 --questions 4 --tokens 100 --overlap 20",
        r"hybrid \+ rerank \| \d+(.|\n)*groundedness 100\.0%",
    ),
    "planner_accuracy": ("", r"Judged: H200[\s\S]+Median 10%"),
    "planner_queues": ("--duration 5 --cases 1", r"azure-conv \| 1 \| 90%"),
    "routing": ("--requests 40 --rate 20", r"prefix .+ \d+\.\d% .+ busiest / mean \d"),
    "run": ("--shape demo --workloads W1", r"W1 +\d.* 0  "),
    "sandboxes": ("--repeats 1 README.md", r"README\.md +\d"),
    "schedule_identity": (
        f"--model {DEMO} --seconds 1 --only bursts --methods ngram",
        r"bursts \| ngram \| 1 \| \d+ \| \d+ \| 100\.00 %",
    ),
    "sessions": ("--sessions 3 --strangers 20", r"value .+ \d+\.\d%"),
    "simulation_cost": ("--concurrency 2 --requests 3 --rounds 1 --prompts 200", r" 2 +\d+ +\d+\.\d\d +\d"),
    "simulated_fleet": ("--deployments 1 --replicas 2 --duration 20", r"16 devices, .+ µs a request"),
    "simulator_validation": (
        f"--model {DEMO} --smoke --only bursts",
        r"bursts \| TTFT p50 \| \d+\.\d+ \|.*\d%",
    ),
    "speculation": ("--smoke --streams 1,2", r"draft_model: \d+ proposals"),
    "startup": ("--runs 1", r"first token +\d"),
    "state_changes": ("--rows 1000 --writers 2", r"\| backup \| \d.* 0 \|"),
    "step_overhead": ("--batches 2 --rounds 1 --steps 6", r"\d( +\d+){4,}"),
    "structured_output": ("--smoke", r"fast-forward: \d"),
    "vector_search": ("--chunks 500 --searches 5", r"hybrid +p50 +\d"),
}
"""What each is asked for, and the pattern of a figure that it prints; `overload`, `peers`, `rolling_replacement` and
`schema_suite` have tests of their own."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the benchmarks keep what they keep: not in the user's home, whose database may be a newer Kvarn's."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.smoke
@pytest.mark.parametrize("name", SMOKE)
def test_a_benchmark_runs(name: str, home: Path) -> None:
    if name == "console_paint" and not (CONSOLE_TOOLS.is_dir() and shutil.which("node") and shutil.which("chromium")):
        no_browser("needs make console-check, node and chromium")
    if name == "sandboxes" and not shutil.which("bwrap"):
        pytest.skip("needs bubblewrap: apt-get install bubblewrap")
    arguments, printed = SMOKE[name]
    program = [sys.executable, "-m", f"benchmarks.{name}", *arguments.split()]
    environment = os.environ | {"HOME": str(home)}
    run = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr[-2000:]
    assert re.search(printed, run.stdout), run.stdout[-2000:]


def test_every_benchmark_has_a_smoke_form() -> None:
    """Modules with a command line of their own."""
    folder = ROOT / "benchmarks"
    programs = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for pattern in ("*.py", "kernels/*.py")
        for path in folder.glob(pattern)
        if "__main__" in path.read_text(encoding="utf-8")
    }
    packages = {"injection", "proxies", "response_cache", "retrieval"}
    assert programs == {*SMOKE, "models", "schema_suite", "rolling_replacement"} - packages
