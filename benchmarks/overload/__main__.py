"""Goodput and shares from half to four times an engine's capacity: with load shedding, at default settings, and in the
order of arrival, as before the engine knew targets.

    python -m benchmarks.overload --minutes 8                    # an engine with modelled time
    python -m benchmarks.overload --traffic short --levels 1,2,3
    python -m benchmarks.overload --engine real --shape 0.6b     # a real one on this machine

Three servers run, one in each mode; each measurement has one of them to itself. First the capacity is sought with
closed loops on the one that serves in order of arrival. Then the levels come in turns, the servers alternating. Each
measurement is a line of JSON in `--results`; at the end comes the Markdown table of docs/internals/overload.md, of
medians.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from rich.console import Console

from benchmarks.overload.load import GRACE_S, Answer, capacity, play
from benchmarks.overload.server import BY_ARRIVAL, DEFAULT, MODELLED, MODES, SHEDDING, command
from benchmarks.overload.traffic import TRAFFIC, Tenant, timetable, weight_share
from benchmarks.run import DEFAULT_CACHE, DEMO, model_of
from benchmarks.server import free_port, running
from kvarn.bench.summary import Slo

LEVELS = (0.5, 1.0, 2.0, 3.0, 4.0)
"""Offered load over the capacity."""
GOALS = {SHEDDING: 0.9, DEFAULT: 0.7}
"""Least goodput past capacity, over that at capacity."""
WARM_UP_S = 10.0
PAUSE_S = 1.0
"""Between measurements: engines end what was given up."""
PROBE_S = 12.0
PROBING_S = 110.0
"""What seeking the capacity takes, about."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: a level in a mode. Percentiles in milliseconds, None where there was nothing to measure."""

    level: float
    mode: str
    offered_per_s: float
    good_per_s: float
    """Requests a second that met both targets: the goodput."""
    good_cost_per_s: float
    """Their weighted tokens."""
    shares: dict[str, float]
    """Of what was served, by tenant."""
    ttft_p50: float | None
    ttft_p95: float | None
    tpot_p95: float | None
    refused: float
    """Share of the requests that were answered with an HTTP error."""
    refused_p95: float | None
    """From sending a request to its refusal."""


def cell(answers: Sequence[Answer], level: float, mode: str, warm_up_s: float, seconds: float) -> Cell:
    """The figures of one measurement: of requests due, and of work done, after the warm-up and before the end."""
    end = warm_up_s + seconds
    due = [each for each in answers if warm_up_s <= each.due_s < end]
    done = [each for each in answers if each.end_s is not None and warm_up_s <= each.end_s < end]
    whole = sum(each.cost for each in done)
    good = [each for each in due if each.good]
    refused = [each.end_s - each.sent_s for each in due if each.end_s and (each.error or "").startswith("http_")]
    ttfts = [each.ttft_s for each in due if each.ttft_s is not None]
    return Cell(
        level=level,
        mode=mode,
        offered_per_s=len(due) / seconds,
        good_per_s=len(good) / seconds,
        good_cost_per_s=sum(each.cost for each in good) / seconds,
        shares={
            name: sum(each.cost for each in done if each.tenant == name) / max(whole, 1.0)
            for name in {each.tenant for each in due}
        },
        ttft_p50=percentile_ms(ttfts, 50),
        ttft_p95=percentile_ms(ttfts, 95),
        tpot_p95=percentile_ms([each.tpot_s for each in due if each.tpot_s is not None], 95),
        refused=len(refused) / max(1, len(due)),
        refused_p95=percentile_ms(refused, 95),
    )


def percentile_ms(seconds: Sequence[float], rank: float) -> float | None:
    return float(np.percentile(np.asarray(seconds), rank)) * 1000 if seconds else None


def middle(cells: Sequence[Cell], level: float, mode: str, read: Callable[[Cell], float | None]) -> float | None:
    """The median of a figure over the rounds."""
    values = [read(each) for each in cells if (each.level, each.mode) == (level, mode)]
    known = [value for value in values if value is not None]
    return median(known) if known else None


def table(cells: Sequence[Cell], tenants: Sequence[Tenant]) -> list[str]:
    """Markdown; a row for each level and mode."""
    columns: list[tuple[str, Callable[[Cell], float | None], str]] = [
        ("offered/s", lambda each: each.offered_per_s, "{:.1f}"),
        ("goodput/s", lambda each: each.good_per_s, "{:.1f}"),
        ("good tokens/s", lambda each: each.good_cost_per_s, "{:,.0f}"),
        *(
            (f"{name} share", lambda each, name=name: each.shares.get(name), "{:.1%}")
            for name in [t.name for t in tenants]
        ),
        ("TTFT p50", lambda each: each.ttft_p50, "{:,.0f} ms"),
        ("p95", lambda each: each.ttft_p95, "{:,.0f} ms"),
        ("TPOT p95", lambda each: each.tpot_p95, "{:,.0f} ms"),
        ("refused", lambda each: each.refused, "{:.0%}"),
        ("refused in (p95)", lambda each: each.refused_p95, "{:,.0f} ms"),
    ]
    lines = [f"| load | mode | {' | '.join(name for name, _, _ in columns)} |", "|---" * (len(columns) + 2) + "|"]
    for level, mode in dict.fromkeys((each.level, each.mode) for each in cells):
        values = [(middle(cells, level, mode, read), form) for _, read, form in columns]
        shown = ["–" if value is None else form.format(value) for value, form in values]
        lines.append(f"| {level:g}x | {mode} | {' | '.join(shown)} |")
    return lines


def verdicts(cells: Sequence[Cell], tenants: Sequence[Tenant]) -> list[str]:
    """The goals, and what was reached."""
    found = []
    for level in sorted({each.level for each in cells if each.level > 1}):
        for mode, goal in GOALS.items():
            there, full = (middle(cells, each, mode, lambda one: one.good_per_s) for each in (level, 1.0))
            if there is None or not full:
                continue
            shares = {
                each: middle(cells, level, mode, lambda one, name=each.name: one.shares.get(name)) or 0.0
                for each in tenants
            }
            unfair = max(abs(share / weight_share(each, tenants) - 1) for each, share in shares.items())
            found.append(
                f"* {level:g}x, {mode}: goodput {there / full:.0%} of that at 1x (goal: at least {goal:.0%}); "
                f"shares within {unfair:.1%} of the weights (goal: 5 %)."
            )
    return found


def measure(asked: argparse.Namespace, console: Console) -> list[Cell]:
    """Seek the capacity, then all levels, modes and rounds."""
    path = "kvarn-demo" if asked.engine == MODELLED else model_of(asked.shape, asked.cache, console)[1]
    slo, tenants = Slo(ttft_ms=asked.ttft_ms, tpot_ms=asked.tpot_ms), TRAFFIC[asked.traffic]
    targets = ["--ttft-ms", str(asked.ttft_ms), "--tpot-ms", str(asked.tpot_ms)]
    cells: list[Cell] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvarn-overload-")))
        urls = {}
        for mode in MODES:
            port = free_port()
            started = running(
                command(mode, port, "--engine", asked.engine, "--path", path, *targets), port, folder / f"{mode}.log"
            )
            urls[mode] = stack.enter_context(started).url
        console.print("seeking the capacity ...")
        probe_s = min(PROBE_S, asked.minutes * 60 / 40)
        most, probes = asyncio.run(capacity(urls[BY_ARRIVAL], slo, tenants, probe_s, asked.seed))
        for users, cost in probes.items():
            console.print(f"  {users:>4} users: {cost:,.0f} weighted tokens/s within the targets")
        warm_up_s = min(WARM_UP_S, asked.minutes * 60 / 48)
        each_s = (asked.minutes * 60 - PROBING_S) / (asked.rounds * len(asked.levels) * len(MODES))
        seconds = max(4.0, each_s - warm_up_s - GRACE_S - PAUSE_S)
        for turn in range(asked.rounds):
            for place, level in enumerate(asked.levels):
                seed = 1 + turn * len(asked.levels) + place  # the same requests in each mode
                for mode in MODES if turn % 2 == 0 else MODES[::-1]:
                    sendings = timetable(tenants, level * most, warm_up_s + seconds, seed)
                    answers = asyncio.run(play(urls[mode], sendings, warm_up_s + seconds, slo, seed))
                    cells.append(cell(answers, level, mode, warm_up_s, seconds))
                    with asked.results.open("ab") as file:
                        file.write(msgspec.json.encode(cells[-1]) + b"\n")
                    console.print(f"round {turn + 1}, {level:g}x, {mode}: goodput {cells[-1].good_per_s:.1f}/s")
                    time.sleep(PAUSE_S)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="for the whole run, about")
    parser.add_argument("--rounds", type=int, help="turns; one for every eight minutes where not given")
    parser.add_argument("--engine", choices=[MODELLED, "real"], default=MODELLED)
    parser.add_argument("--traffic", choices=TRAFFIC, default="mixed")
    parser.add_argument("--levels", type=lambda text: [float(each) for each in text.split(",")], default=list(LEVELS))
    parser.add_argument("--shape", default=DEMO, help="of the real engine's model: demo, 0.6b, 1b")
    parser.add_argument("--ttft-ms", type=float, default=2000.0)
    parser.add_argument("--tpot-ms", type=float, default=200.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("overload.jsonl"), help="file that gets a line for each")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder that keeps made models")
    asked = parser.parse_args()
    asked.rounds = asked.rounds or max(1, int(asked.minutes // 8))
    cells = measure(asked, Console(stderr=True, highlight=False))
    tenants = TRAFFIC[asked.traffic]
    print("\n".join([*table(cells, tenants), "", *verdicts(cells, tenants)]))


if __name__ == "__main__":
    main()
