"""The simulator against this machine: what it predicts of loads that it was not calibrated on, beside what a real
server does with them (docs/internals/simulator_accuracy.md).

In each round a replica is calibrated by `kvarn bench profile`, with a load of its own. Then the mixes of
`simulator_mixes` are sent to real servers, one after another, and played by the simulator: the same requests at the
same times. Medians of the rounds are told.

Usage: python -m benchmarks.models --shape 30m --out FOLDER
       python -m benchmarks.simulator_validation --model FOLDER/qwen3-30m-shape
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from benchmarks.simulator_mixes import (
    CONFIGURATIONS,
    CONTEXT,
    KV_GIB,
    MIXES,
    SATURATED,
    Figures,
    kendall_tau,
    priority,
    run_real,
    run_simulated,
)
from kvarn.simulator.calibration import read_calibration

Runs: TypeAlias = list[tuple[Figures, Figures]]
"""Real and simulated figures, a pair for each round."""
Value: TypeAlias = Callable[[Figures], float]
PARTS = ("mixes", "saturation", "ranking")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the simulator with real servers.")
    parser.add_argument("--model", required=True, help="directory, hub id or packaged model")
    parser.add_argument("--calibration", type=Path, help="use this one in place of a new one in each round")
    parser.add_argument("--seconds", type=float, default=24.0, help="of each run's arrivals")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each mix")
    parser.add_argument("--seed", type=int, default=1, help="of the requests and their times")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", nargs="+", default=None, help="names of mixes")
    parser.add_argument("--configurations", type=int, default=len(CONFIGURATIONS), help="of those that are ranked")
    parser.add_argument("--priority", action="store_true", help="run before other processes (root only)")
    parser.add_argument("--json", type=Path, help="write all figures")
    parser.add_argument("--smoke", action="store_true", help="little of each: the figures say nothing")
    options = parser.parse_args()
    if options.smoke:
        options.seconds, options.rounds, options.parts = 1.0, 1, ("mixes",)
    with priority() if options.priority else nullcontext():
        validate(options)


def calibrate(model: str, path: Path, *, smoke: bool = False) -> None:
    """Have `kvarn bench profile` measure a replica."""
    command = [str(Path(sys.executable).with_name("kvarn")), "bench", "profile", model, "-o", str(path)]
    command += ["--kv-cache-gib", str(KV_GIB), "--max-context-length", str(CONTEXT)]
    command += (
        ["--rounds", "1", "--batch", "2", "--context", "65", "--clients", "2", "--requests", "4"] if smoke else []
    )
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def validate(options: argparse.Namespace) -> None:
    groups = {"mixes": MIXES, "saturation": SATURATED, "ranking": CONFIGURATIONS[: options.configurations]}
    chosen = {
        part: [mix for mix in groups[part] if options.only is None or mix.name in options.only]
        for part in options.parts
    }
    runs: dict[str, Runs] = {}
    for number in range(options.rounds):
        with TemporaryDirectory(prefix="validation-") as name:
            folder, path = Path(name), options.calibration
            if path is None:
                path = folder / "calibration.json"
                calibrate(options.model, path, smoke=options.smoke)
            replica = read_calibration(path).replica
            for part, mixes in chosen.items():
                for mix in mixes:
                    real = run_real(mix, Path(options.model), folder, options.seconds, options.seed)
                    simulated = run_simulated(mix, replica, options.seconds, options.seed)
                    runs.setdefault(f"{part}: {mix.name}", []).append((real, simulated))
        print(f"round {number + 1}: load average {os.getloadavg()[0]:.1f}", flush=True)
    printers = {"mixes": print_mixes, "saturation": print_saturation, "ranking": print_ranking}
    for part, mixes in chosen.items():
        print()
        printers[part]({mix.name: runs[f"{part}: {mix.name}"] for mix in mixes})
    if options.json is not None:
        found = {name: [[asdict(each) for each in pair] for pair in pairs] for name, pairs in runs.items()}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def compared(pairs: Runs, value: Value) -> tuple[float, float, float, float]:
    """Medians over the rounds: of the real value, of its relative spread, of the simulated one, of the error."""
    real, simulated = [value(pair[0]) for pair in pairs], [value(pair[1]) for pair in pairs]
    middle = statistics.median(real)
    error = statistics.median(guess / seen - 1 for seen, guess in zip(real, simulated, strict=True))
    return middle, (max(real) - min(real)) / middle, statistics.median(simulated), error


def print_mixes(runs: dict[str, Runs]) -> None:
    """A line of Markdown for each mix and figure."""
    print("| mix | figure | real ms | spread | simulated ms | error |")
    print("|---|---|---|---|---|---|")
    for name, pairs in runs.items():
        for figure, value in FIGURES.items():
            middle, spread, guess, error = compared(pairs, value)
            print(f"| {name} | {figure} | {1e3 * middle:.2f} | {spread:.0%} | {1e3 * guess:.2f} | {error:+.1%} |")
        failed = [sum(pair[which].failed for pair in pairs) for which in (0, 1)]
        cached = [statistics.median(pair[which].cached for pair in pairs) for which in (0, 1)]
        print(f"| {name} | cached, failed | {cached[0]:.1%}, {failed[0]} | | {cached[1]:.1%}, {failed[1]} | |")


FIGURES: dict[str, Value] = {
    "TTFT p50": lambda each: each.ttft[0],
    "TTFT p95": lambda each: each.ttft[1],
    "TPOT p50": lambda each: each.tpot[0],
    "TPOT p95": lambda each: each.tpot[1],
}


def print_saturation(runs: dict[str, Runs]) -> None:
    print("| load | real tokens/s | spread | simulated | error |")
    print("|---|---|---|---|---|")
    for name, pairs in runs.items():
        middle, spread, guess, error = compared(pairs, lambda each: each.tokens_per_s)
        print(f"| {name} | {middle:.0f} | {spread:.1%} | {guess:.0f} | {error:+.1%} |")


def print_ranking(runs: dict[str, Runs]) -> None:
    print("| configuration | real mean E2E ms | simulated | error |")
    print("|---|---|---|---|")
    for name, pairs in runs.items():
        middle, _, guess, error = compared(pairs, lambda each: each.e2e_mean)
        print(f"| {name} | {1e3 * middle:.0f} | {1e3 * guess:.0f} | {error:+.1%} |")
    for name, value in {"mean E2E": lambda each: each.e2e_mean, **FIGURES}.items():
        real, simulated = (
            [statistics.median(value(pair[which]) for pair in pairs) for pairs in runs.values()] for which in (0, 1)
        )
        print(f"Kendall tau of {len(runs)} configurations by {name}: {kendall_tau(real, simulated):.2f}")


if __name__ == "__main__":
    main()
