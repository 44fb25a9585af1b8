"""The command line: `prepare`, `run`, `report`."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from benchmarks.models import SHAPES
from benchmarks.peers.engines import ENGINES, default_engines
from benchmarks.peers.engines.base import Case, Engine, Precision
from benchmarks.peers.load import NAMES
from benchmarks.peers.records import Ledger, RecordsError, all_answered, read
from benchmarks.peers.report import print_report
from benchmarks.peers.section import write_section
from benchmarks.peers.session import Runner, Suite
from benchmarks.peers.workshop import ROOT, PrepareError, Workshop, processor_flags
from benchmarks.run import DEFAULT_CACHE as MODELS

DEFAULT_CACHE = Path.home() / ".cache" / "kvarn-peers"
DOCUMENT = ROOT / "docs" / "benchmarks.md"


def prepare(arguments: argparse.Namespace, console: Console) -> int:
    """Install the engines and convert the models; one engine's failure is said and does not keep the others."""
    shop, failed = Workshop(arguments.cache, arguments.models), False
    for name in arguments.engines:
        engine = ENGINES[name]
        try:
            console.print(f"{name}: installing ...", highlight=False)
            engine.install(shop)
            for case in cases(engine, arguments):
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


def cases(engine: Engine, arguments: argparse.Namespace) -> list[Case]:
    """The models and precisions that were asked for and that the engine offers."""
    offered = [each for each in arguments.classes if engine.precision_note(each)]
    return [Case(SHAPES[shape], precision) for shape in arguments.shapes for precision in offered]


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Measure, and print the report. 0 also where engines failed: that is a result, and stands in the report. A smoke
    run has no other result: 1."""
    signal.signal(signal.SIGTERM, _leave)
    ledger = Ledger.open(arguments.results, resume=arguments.resume)
    suite = Suite(
        engines={name: ENGINES[name] for name in arguments.engines},
        shapes=arguments.shapes,
        precisions=arguments.classes,
        workloads=arguments.workloads,
        rounds=1 if arguments.smoke else arguments.rounds,
        limit_s=arguments.limit_s,
        start_limit_s=arguments.start_limit_s,
        rate=arguments.w6_rate,
        smoke=arguments.smoke,
        minutes=arguments.minutes,
    )
    try:
        Runner(suite, Workshop(arguments.cache, arguments.models), ledger, console).run()
    except KeyboardInterrupt:
        console.print(f"interrupted; go on with: run --resume --results {arguments.results}", highlight=False)
        return 130
    print_report(ledger.records, _terminal())
    return int(arguments.smoke and not all_answered(ledger.records))


def report(arguments: argparse.Namespace, console: Console) -> int:
    """Print the report; with `--write` also into the document and its plots."""
    records = read(arguments.results)
    print_report(records, _terminal())
    if arguments.write:
        for path in write_section(records, arguments.document):
            console.print(f"wrote {path}", highlight=False)
    return 0


def names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads a list separated by commas; all of it must be among `allowed`."""

    def read_names(text: str) -> list[str]:
        by_folded = {name.casefold(): name for name in allowed}
        asked = [part.strip().casefold() for part in text.split(",")]
        if unknown := [name for name in asked if name not in by_folded]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
        return [by_folded[name] for name in asked]

    return read_names


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Kvarn against its peers.")
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    classes, engines = [str(each) for each in Precision], default_engines(processor_flags())
    common.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help=f"default {DEFAULT_CACHE}")
    common.add_argument("--models", type=Path, default=MODELS, help=f"made checkpoints; default {MODELS}")
    common.add_argument("--engines", type=names(list(ENGINES)), default=engines, help=f"default {','.join(engines)}")
    common.add_argument("--classes", type=names(classes), default=classes, help=f"default {','.join(classes)}")
    common.add_argument("--shapes", type=names(list(SHAPES)), default=["0.6b"], help="default 0.6b")
    commands.add_parser("prepare", parents=[common], help="install the engines, convert the models")
    runner = commands.add_parser("run", parents=[common], help="measure")
    runner.add_argument("--workloads", type=names(NAMES), default=list(NAMES), help=f"default {','.join(NAMES)}")
    runner.add_argument("--rounds", type=int, default=3)
    runner.add_argument("--limit-s", type=float, default=300.0, help="of one workload; longer ones are cut off")
    runner.add_argument("--start-limit-s", type=float, default=900.0, help="of a start")
    runner.add_argument(
        "--minutes", type=float, default=math.inf, help="start no engine later than this; then --resume"
    )
    runner.add_argument("--w6-rate", type=float, help="requests/s of W6; default 80 %% of the best peer's on W3")
    runner.add_argument(
        "--smoke", action="store_true", help="one batch of short requests of each workload; 1 if any is not answered"
    )
    runner.add_argument("--results", type=Path, default=DEFAULT_CACHE / "results.jsonl")
    runner.add_argument("--resume", action="store_true", help="go on with a file of results")
    reporter = commands.add_parser("report", help="print the results of a run")
    reporter.add_argument("--results", type=Path, default=DEFAULT_CACHE / "results.jsonl")
    reporter.add_argument("--write", action="store_true", help="also into docs/benchmarks.md, with plots")
    reporter.add_argument("--document", type=Path, default=DOCUMENT)
    parsed = parser.parse_args(arguments)
    if hasattr(parsed, "classes"):
        parsed.classes = [Precision(each) for each in parsed.classes]
    return parsed


def main() -> int:
    """0 if the command did what it says."""
    arguments, console = parse(), Console(stderr=True)
    try:
        return {"prepare": prepare, "run": run, "report": report}[arguments.command](arguments, console)
    except RecordsError as error:
        console.print(str(error), markup=False, highlight=False)
        return 2


def _terminal() -> Console:
    """Tables are not squeezed where the output is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=180)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """A runner that is told to end must pass through its `finally` and take the engine with it."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
