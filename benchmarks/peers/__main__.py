"""The command line: `prepare`, `run`, `report`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.models import SHAPES
from benchmarks.peers.engines import Case, Precision, engines
from benchmarks.peers.records import Failure, Ledger, RecordsError, measurements, read
from benchmarks.peers.report import report
from benchmarks.peers.session import NAMES, Runner, Suite
from benchmarks.peers.workshop import PrepareError, Workshop
from benchmarks.run import DEFAULT_CACHE as MODELS

CACHE = Path.home() / ".cache" / "kvarn-peers"


def prepare(options: argparse.Namespace, console: Console) -> int:
    """Install the engines and convert the models; one engine's failure does not keep the others."""
    shop, failed = Workshop(options.cache, options.models), False
    for name in options.engines:
        engine = engines()[name]
        cases = [
            Case(SHAPES[shape], each) for shape in options.shapes for each in options.classes if each in engine.notes
        ]
        try:
            console.print(f"{name}: installing ...", highlight=False)
            engine.install(shop)
            for case in cases:
                console.print(f"{name}: making {case.label} ...", highlight=False)
                engine.convert(shop, case)
                if reason := engine.obstacle(shop, case):
                    raise PrepareError(reason)
        except PrepareError as error:
            failed = True
            console.print(f"{name}: cannot be prepared: {error}", markup=False, highlight=False)
        else:
            console.print(f"{name}: ready", highlight=False)
    return int(failed)


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, and print the report. 0 also where engines failed: that is a result, and stands in the report. A smoke
    run has no other result: 1."""
    ledger = Ledger(options.results, resume=options.resume)
    suite = Suite(
        shapes=options.shapes,
        precisions=options.classes,
        workloads=options.workloads,
        rounds=1 if options.smoke else options.rounds,
        limit_s=options.limit_s,
        start_limit_s=options.start_limit_s,
        rate=options.w6_rate,
        smoke=options.smoke,
        minutes=options.minutes,
    )
    chosen = {name: engines()[name] for name in options.engines}
    try:
        Runner(suite, chosen, Workshop(options.cache, options.models), ledger, console).run()
    except KeyboardInterrupt:
        console.print(f"interrupted; go on with: run --resume --results {options.results}", highlight=False)
        return 130
    print(report(ledger.records))
    measured = measurements(ledger.records)
    all_answered = measured and all(each.whole for each in measured)
    return int(options.smoke and (not all_answered or any(isinstance(each, Failure) for each in ledger.records)))


def names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """Read a list separated by commas; all of it must be among `allowed`."""

    def read_names(text: str) -> list[str]:
        by_folded = {name.casefold(): name for name in allowed}
        asked = [part.strip().casefold() for part in text.split(",")]
        if unknown := [name for name in asked if name not in by_folded]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
        return [by_folded[name] for name in asked]

    return read_names


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Kvarn against its peers.")
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    classes, usable = [str(each) for each in Precision], list(engines())
    common.add_argument("--cache", type=Path, default=CACHE, help=f"default {CACHE}")
    common.add_argument("--models", type=Path, default=MODELS, help=f"made checkpoints; default {MODELS}")
    common.add_argument("--engines", type=names(usable), default=usable, help=f"default {','.join(usable)}")
    common.add_argument("--classes", type=names(classes), default=classes, help=f"default {','.join(classes)}")
    common.add_argument("--shapes", type=names(list(SHAPES)), default=["0.6b"], help="default 0.6b")
    results = argparse.ArgumentParser(add_help=False)
    results.add_argument("--results", type=Path, default=CACHE / "results.jsonl")
    commands.add_parser("prepare", parents=[common], help="install the engines, convert the models")
    runner = commands.add_parser("run", parents=[common, results], help="measure")
    runner.add_argument("--workloads", type=names(NAMES), default=list(NAMES), help=f"default {','.join(NAMES)}")
    runner.add_argument("--rounds", type=int, default=3)
    runner.add_argument("--limit-s", type=float, default=300.0, help="of one workload; longer ones are cut off")
    runner.add_argument("--start-limit-s", type=float, default=900.0, help="of a start")
    runner.add_argument("--minutes", type=float, default=math.inf, help="start no engine later; then --resume")
    runner.add_argument("--w6-rate", type=float, help="requests/s of W6; default 80 %% of the best peer's on W3")
    runner.add_argument("--smoke", action="store_true", help="short requests, once; 1 if any is not answered")
    runner.add_argument("--resume", action="store_true", help="go on with a file of results")
    commands.add_parser("report", parents=[results], help="print the results of a run as Markdown")
    parsed = parser.parse_args(arguments)
    if hasattr(parsed, "classes"):
        parsed.classes = [Precision(each) for each in parsed.classes]
    return parsed


def main() -> int:
    """0 if the command did what it says."""
    options, console = parse(), Console(stderr=True)
    try:
        if options.command == "report":
            print(report(read(options.results)))
            return 0
        return prepare(options, console) if options.command == "prepare" else run(options, console)
    except RecordsError as error:
        console.print(str(error), markup=False, highlight=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
