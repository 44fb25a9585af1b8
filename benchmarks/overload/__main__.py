"""Goodput and shares from half to four times an engine's capacity: with load shedding, at default settings, and in the
order of arrival, as before the engine knew targets.

    python -m benchmarks.overload --minutes 8                    # an engine with modelled time
    python -m benchmarks.overload --minutes 8 --resume           # after an interruption: only what is left
    python -m benchmarks.overload --traffic short --levels 1,2,3
    python -m benchmarks.overload --engine real --shape 0.6b     # a real one on this machine
    python -m benchmarks.overload report --write                 # docs/overload.json, .svg and the table

Three servers run, one in each mode; each measurement has one of them to itself. First the capacity is sought with
closed loops on the one that serves in order of arrival. Then the levels come in turns, the servers alternating. Every
figure is written the moment it is known.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.overload import report
from benchmarks.overload.figures import LEVELS, Results, ResultsError, Setting, append, cell, read
from benchmarks.overload.load import GRACE_S, capacity, play
from benchmarks.overload.server import BY_ARRIVAL, MODELLED, MODES, ROOT, Target, running
from benchmarks.overload.traffic import TRAFFIC, timetable
from benchmarks.run import DEFAULT_CACHE, DEMO, model_of
from kvarn.bench.export import environment
from kvarn.bench.summary import Slo

WARM_UP_S = 10.0
PAUSE_S = 1.0
"""Between measurements: engines end what was given up."""
PROBE_S = 12.0
PROBING_S = 110.0
"""What seeking the capacity takes, about."""
RESULTS = Path.home() / ".cache" / "kvarn-bench" / "overload.jsonl"


def measure(asked: argparse.Namespace, console: Console) -> Results:
    """Measure what is left to do.

    Raises:
        ResultsError: The file to go on with is of another setting.
    """
    path = asked.results[0]
    known = read(path) if asked.resume and path.exists() else None
    if known is None:
        path.unlink(missing_ok=True)
    model, checkpoint = (
        model_of(asked.shape, asked.cache, console) if asked.engine != MODELLED else (DEMO, "kvarn-demo")
    )
    target = Target(asked.ttft_ms, asked.tpot_ms)
    if known is not None:
        if (known.setting.engine, known.setting.path) != (asked.engine, checkpoint):
            raise ResultsError(f"{path} is of {known.setting.engine} {known.setting.path}: name another with --results")
        target = Target(known.setting.ttft_ms, known.setting.tpot_ms)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvarn-overload-")))
        urls = {mode: stack.enter_context(running(asked.engine, checkpoint, target, folder, mode)) for mode in MODES}
        console.print(f"{model}: all servers run; targets: TTFT {target.ttft_ms:g} ms, TPOT {target.tpot_ms:g} ms")
        setting = (
            known.setting if known is not None else _find_setting(asked, checkpoint, target, urls[BY_ARRIVAL], console)
        )
        if known is None:
            append(path, setting)
        done = set() if known is None else {each.key for each in known.cells}
        for turn in range(asked.rounds):
            for level in setting.levels:
                for mode in MODES if turn % 2 == 0 else MODES[::-1]:
                    if (level, mode, turn) not in done:
                        _measure_one(setting, path, urls[mode], level, mode, turn, console)
    return read(path)


def _find_setting(asked: argparse.Namespace, checkpoint: str, target: Target, url: str, console: Console) -> Setting:
    console.print("seeking the capacity ...")
    slo = Slo(ttft_ms=target.ttft_ms, tpot_ms=target.tpot_ms)
    probe_s = min(PROBE_S, asked.minutes * 60 / 40)
    most, probes = asyncio.run(capacity(url, slo, TRAFFIC[asked.traffic], probe_s, asked.seed))
    for users, cost in probes.items():
        console.print(f"  {users:>4} users: {cost:,.0f} weighted tokens/s within the targets")
    cells = asked.rounds * len(asked.levels) * len(MODES)
    warm_up_s = min(WARM_UP_S, asked.minutes * 60 / 48)
    seconds = (asked.minutes * 60 - PROBING_S) / cells - warm_up_s - GRACE_S - PAUSE_S
    return Setting(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(),
        engine=asked.engine,
        path=checkpoint,
        traffic=asked.traffic,
        levels=asked.levels,
        ttft_ms=target.ttft_ms,
        tpot_ms=target.tpot_ms,
        seconds=max(4.0, seconds),
        warm_up_s=warm_up_s,
        capacity=most,
        probes={str(users): cost for users, cost in probes.items()},
    )


def _measure_one(setting: Setting, path: Path, url: str, level: float, mode: str, turn: int, console: Console) -> None:
    whole = setting.warm_up_s + setting.seconds
    seed = 1 + turn * len(setting.levels) + setting.levels.index(level)  # the same requests in each mode
    sendings = timetable(TRAFFIC[setting.traffic], level * setting.capacity, whole, seed)
    slo = Slo(ttft_ms=setting.ttft_ms, tpot_ms=setting.tpot_ms)
    load_before = os.getloadavg()[0]
    answers = asyncio.run(play(url, sendings, whole, slo, seed))
    found = cell(
        answers,
        level=level,
        mode=mode,
        turn=turn,
        warm_up_s=setting.warm_up_s,
        seconds=setting.seconds,
        load_before=load_before,
    )
    append(path, found)
    shares = ", ".join(f"{name} {share:.1%}" for name, share in found.shares.items())
    console.print(
        f"round {turn + 1}, {level:g}x, {mode}: goodput {found.good_per_s:.1f} of "
        f"{found.offered_per_s:.1f} requests/s; {shares}",
        highlight=False,
    )
    asyncio.run(asyncio.sleep(PAUSE_S))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=["run", "report"], default="run")
    parser.add_argument("--minutes", type=float, default=8.0, help="for the whole run, about")
    parser.add_argument("--rounds", type=int, help="turns; one for every eight minutes where not given")
    parser.add_argument("--engine", choices=[MODELLED, "real"], default=MODELLED)
    parser.add_argument("--traffic", choices=TRAFFIC, default="mixed")
    parser.add_argument(
        "--levels",
        type=lambda text: [float(each) for each in text.split(",")],
        default=list(LEVELS),
        help="offered load over the capacity",
    )
    parser.add_argument("--shape", default=DEMO, help="of the real engine's model: demo, 0.6b, 1b")
    parser.add_argument("--ttft-ms", type=float, default=2000.0)
    parser.add_argument("--tpot-ms", type=float, default=200.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, nargs="+", default=[RESULTS], help="file of figures; report: several")
    parser.add_argument("--resume", action="store_true", help="go on with that file")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder that keeps made models")
    parser.add_argument("--write", action="store_true", help="report: write docs/overload.md, .svg and .json")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder to write into")
    asked = parser.parse_args()
    asked.rounds = asked.rounds or max(1, int(asked.minutes // 8))
    return asked


def main() -> int:
    """0 if everything was measured."""
    asked, console = parse(), Console(stderr=True)
    try:
        several = [measure(asked, console)] if asked.command == "run" else [read(path) for path in asked.results]
    except (ResultsError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    for results in several:
        Console().print(report.table(results))
        for line in report.verdicts(results):
            print(line)
    if asked.write:
        for written in report.write(several, asked.docs):
            print(f"wrote {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
