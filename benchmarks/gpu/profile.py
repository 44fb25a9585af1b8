"""The three kernels that are furthest from their floor, under NVIDIA's profiler."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

from benchmarks.gpu.kernel_stages import cases
from benchmarks.gpu.run import Session

METRICS = (
    "gpu__time_duration.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
)


def profile(session: Session) -> dict[str, Any]:
    """What the profiler says of each; a reason where there is none."""
    times = session.results.get("kernel_times", {})
    slowest = sorted(times, key=lambda name: times[name]["of_floor"])[:3]
    if session.dry or shutil.which("ncu") is None:
        return {"not run": "no ncu here", "slowest": slowest}
    found: dict[str, Any] = {}
    for name in slowest:
        command = ["ncu", "--csv", "--metrics", ",".join(METRICS), sys.executable, "-m", "benchmarks.gpu", "one"]
        ran = subprocess.run([*command, "--case", name], capture_output=True, text=True, timeout=60, check=False)
        found[name] = (ran.stdout + ran.stderr)[-3000:]
        session.note("profile", found)
    return found


def run_case(session: Session, name: str) -> None:
    """Run one of the timed cases three times."""
    for found, call, _, _ in cases(session):
        if found == name:
            for _ in range(3):
                call()
            session.timer.finish()
            return
    raise SystemExit(f"no case {name!r}")
