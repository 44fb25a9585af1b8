"""Schedules of a real server under load, played again: which part of the steps is planned alike, to the last block.

The server's engines record what they were asked, each time they read, what their steps drew and how long they took.
The engine of this code gets the same and decides the rest again (docs/internals/simulator_accuracy.md).

Usage: python -m benchmarks.models --shape 30m --out FOLDER
       python -m benchmarks.schedule_identity --model FOLDER/qwen3-30m-shape
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.simulator_mixes import MIXES, run_real
from kvarn.simulator.schedule_replay import read_schedule, replay


def main() -> None:
    parser = argparse.ArgumentParser(description="Record a real server's schedules and play them again.")
    parser.add_argument("--model", required=True, help="directory of a checkpoint")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each mix")
    parser.add_argument("--only", nargs="+", help="names of mixes")
    parser.add_argument("--methods", nargs="+", choices=("none", "ngram"), default=("none", "ngram"))
    options = parser.parse_args()
    print("| mix | speculation | engines | requests | steps | alike | tokens | cached | preemptions |")
    print("|---|---|---|---|---|---|---|---|---|")
    for mix in MIXES:
        if options.only is not None and mix.name not in options.only:
            continue
        for method in options.methods:
            with TemporaryDirectory(prefix="identity-") as name:
                folder = Path(name)
                recording = replace(
                    mix,
                    engine=mix.engine | {"schedule_folder": str(folder / "schedules")},
                    model=mix.model | {"speculation": {"method": method}},
                )
                run_real(recording, Path(options.model), folder, options.seconds, seed=2)
                played = [replay(read_schedule(path)) for path in sorted((folder / "schedules").iterdir())]
            steps, alike = sum(each.steps for each in played), sum(each.identical for each in played)
            print(
                f"| {mix.name} | {method} | {len(played)} | {sum(each.requests for each in played)} | {steps} | "
                f"{100 * alike / max(1, steps):.2f} % | {sum(each.tokens for each in played)} | "
                f"{sum(each.cached_tokens for each in played)} | {sum(each.preemptions for each in played)} |",
                flush=True,
            )
            for each in played:
                if each.difference:
                    print(each.difference)


if __name__ == "__main__":
    main()
