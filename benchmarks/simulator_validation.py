"""The simulator against this machine: what it predicts of loads that it was not calibrated on, beside what a real
server does with them (docs/internals/simulator_accuracy.md).

A replica is calibrated by `kvarn bench profile`, with a load of its own. Then the mixes of `simulator_mixes` are sent
to real servers, several times in turn, and played by the simulator: the same requests at the same times.

Usage: python -m benchmarks.models --shape 30m --out FOLDER
       python -m benchmarks.simulator_validation --model FOLDER/qwen3-30m-shape --calibration calibration.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.simulator_mixes import (
    CONFIGURATIONS,
    CONTEXT,
    KV_GIB,
    MIXES,
    SATURATED,
    Figures,
    Mix,
    kendall_tau,
    priority,
    run_real,
)
from benchmarks.simulator_mixes import run_simulated as play
from kvarn.simulator.calibration import read_calibration

PARTS = ("mixes", "saturation", "ranking")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the simulator with real servers.")
    parser.add_argument("--model", required=True, help="directory, hub id or packaged model")
    parser.add_argument(
        "--calibration", type=Path, required=True, help="file of `kvarn bench profile`; made if missing"
    )
    parser.add_argument("--seconds", type=float, default=24.0, help="of each run's arrivals")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each mix on the real server")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", nargs="+", default=None, help="names of mixes")
    parser.add_argument("--configurations", type=int, default=len(CONFIGURATIONS), help="of those that are ranked")
    parser.add_argument("--priority", action="store_true", help="run before other processes (root only)")
    parser.add_argument("--json", type=Path, help="write all figures")
    options = parser.parse_args()
    with priority() if options.priority else nullcontext():
        validate(options)


def calibrate(model: str, path: Path) -> None:
    """Have `kvarn bench profile` measure a replica."""
    command = [str(Path(sys.executable).with_name("kvarn")), "bench", "profile", model, "-o", str(path)]
    command += ["--kv-cache-gib", str(KV_GIB), "--max-context-length", str(CONTEXT)]
    subprocess.run(command, check=True, env=os.environ | {"COLUMNS": "110"})


def validate(options: argparse.Namespace) -> None:
    if not options.calibration.exists():
        calibrate(options.model, options.calibration)
    replica = read_calibration(options.calibration).replica
    found: dict[str, Any] = {"load_average": os.getloadavg()}
    with TemporaryDirectory(prefix="validation-") as folder:
        for part in options.parts:
            mixes = {"mixes": MIXES, "saturation": SATURATED, "ranking": CONFIGURATIONS[: options.configurations]}[part]
            chosen = [mix for mix in mixes if options.only is None or mix.name in options.only]
            rounds = options.rounds if part != "ranking" else 1
            measured = measure(chosen, options.model, Path(folder), options.seconds, rounds)
            began = time.perf_counter()
            played = [play(mix, replica, options.seconds, seed=1) for mix in chosen]
            took = time.perf_counter() - began
            print(f"\n{part}: simulated in {took:.1f} s, load average {os.getloadavg()[0]:.1f}")
            {"mixes": print_mixes, "saturation": print_saturation, "ranking": print_ranking}[part](
                chosen, measured, played
            )
            found[part] = {
                mix.name: {"real": [asdict(each) for each in real], "simulated": asdict(simulated)}
                for mix, real, simulated in zip(chosen, measured, played, strict=True)
            }
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(mixes: Sequence[Mix], model: str, folder: Path, seconds: float, rounds: int) -> list[list[Figures]]:
    """Runs of each mix on real servers, the mixes in turn."""
    runs: list[list[Figures]] = [[] for _ in mixes]
    for _ in range(rounds):
        for mix, own in zip(mixes, runs, strict=True):
            own.append(run_real(mix, Path(model), folder, seconds, seed=1))
    return runs


def print_mixes(mixes: Sequence[Mix], measured: Sequence[list[Figures]], played: Sequence[Figures]) -> None:
    """A line of Markdown for each mix and figure: real, spread of the real runs, simulated, error."""
    print("| mix | figure | real ms | spread | simulated ms | error |")
    print("|---|---|---|---|---|---|")
    for mix, real, simulated in zip(mixes, measured, played, strict=True):
        for name, value in FIGURES.items():
            values = [value(each) for each in real]
            middle, guess = statistics.median(values), value(simulated)
            spread = (max(values) - min(values)) / middle
            print(
                f"| {mix.name} | {name} | {1e3 * middle:.2f} | {spread:.0%} | {1e3 * guess:.2f} | "
                f"{guess / middle - 1:+.1%} |"
            )
        failed, cached = [each.failed for each in real], [each.cached for each in real]
        print(
            f"| {mix.name} | failed, cached | {max(failed)}, {statistics.median(cached):.1%} | | "
            f"{simulated.failed}, {simulated.cached:.1%} | |"
        )


FIGURES = {
    "TTFT p50": lambda each: each.ttft[0],
    "TTFT p95": lambda each: each.ttft[1],
    "TPOT p50": lambda each: each.tpot[0],
    "TPOT p95": lambda each: each.tpot[1],
}


def print_saturation(mixes: Sequence[Mix], measured: Sequence[list[Figures]], played: Sequence[Figures]) -> None:
    print("| load | real tokens/s | spread | simulated | error |")
    print("|---|---|---|---|---|")
    for mix, real, simulated in zip(mixes, measured, played, strict=True):
        values = [each.tokens_per_s for each in real]
        middle = statistics.median(values)
        print(
            f"| {mix.name} | {middle:.0f} | {(max(values) - min(values)) / middle:.1%} | "
            f"{simulated.tokens_per_s:.0f} | {simulated.tokens_per_s / middle - 1:+.1%} |"
        )


def print_ranking(mixes: Sequence[Mix], measured: Sequence[list[Figures]], played: Sequence[Figures]) -> None:
    print("| configuration | real mean E2E ms | simulated | error |")
    print("|---|---|---|---|")
    for mix, real, simulated in zip(mixes, measured, played, strict=True):
        value = statistics.median(each.e2e_mean for each in real)
        error = simulated.e2e_mean / value - 1
        print(f"| {mix.name} | {1e3 * value:.0f} | {1e3 * simulated.e2e_mean:.0f} | {error:+.1%} |")
    for name, value_of in {"mean E2E": lambda each: each.e2e_mean, **FIGURES}.items():
        tau = kendall_tau([value_of(real[0]) for real in measured], [value_of(each) for each in played])
        print(f"Kendall tau of {len(mixes)} configurations by {name}: {tau:.2f}")


if __name__ == "__main__":
    main()
