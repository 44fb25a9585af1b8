"""Run the workloads against Kvarn, or against any running server, and print the table.

Usage: python -m benchmarks.run --workloads W1,W3 --shape 0.6b
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.models import SHAPES, make_model
from benchmarks.server import ServerError, Started, serving
from benchmarks.workloads import SLO, WARM_UP, WORKLOADS, Workload
from kvarn.bench.driver import Job, Outcome
from kvarn.bench.export import environment
from kvarn.bench.session import BenchError, run_job
from kvarn.bench.summary import Distribution, Summary, summarise
from kvarn.bench.target import Target
from kvarn.traffic.workload import Vocabulary, warm_up_requests

DEFAULT_CACHE = Path.home() / ".cache" / "kvarn-bench"
DEMO = "demo"
DEMO_IDS, SHAPE_IDS = Vocabulary(300, 4000), Vocabulary(300, 31_000)
WARM_UP_SEED = 1_000_000
INTERRUPTED = 130


def run_workload(workload: Workload, target: Target, console: Console | None = None) -> Outcome:
    """One run of a workload; its shared prefix is warmed first where it says so."""
    requests = workload.make(target.seed)
    warm = warm_up_requests(requests, workload.warm_requests)
    return run_job(Job(target=target, requests=requests, concurrency=workload.concurrency, warm_up=warm), console)


def measure(arguments: argparse.Namespace, url: str, model: str, console: Console) -> list[dict[str, Any]]:
    """All rounds of all workloads; each has its own prompts."""
    vocabulary = DEMO_IDS if arguments.shape == DEMO else SHAPE_IDS
    target = Target(url=url, model=model, vocabulary=vocabulary)
    if arguments.warm_up:
        for warm in WARM_UP:
            run_workload(warm, msgspec.structs.replace(target, seed=WARM_UP_SEED), console)
    results = []
    for turn in range(arguments.rounds):
        for place, name in enumerate(arguments.workloads):
            seeded = msgspec.structs.replace(target, seed=arguments.seed + 100 * turn + place)
            outcome = run_workload(WORKLOADS[name], seeded, console)
            summary = summarise(outcome, SLO)
            console.print(f"{name}: {summary.output_tokens_per_s:.1f} output tokens/s, {summary.failed} failed")
            results.append({"workload": name, "round": turn, "summary": summary})
            if outcome.interrupted:
                return results
    return results


def table(results: list[dict[str, Any]], title: str) -> Table:
    """A row for each run, with the columns the peers were measured by."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    headings = ("", "out/s", "total/s", "TTFT p50 / p95", "TPOT p50 / p95", "goodput", "cached", "failed")
    for heading in headings:
        shown.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for result in results:
        summary: Summary = result["summary"]
        shown.add_row(
            result["workload"],
            f"{summary.output_tokens_per_s:.1f}",
            f"{summary.total_tokens_per_s:.0f}",
            _percentiles(summary.ttft_ms),
            _percentiles(summary.tpot_ms),
            "-" if summary.goodput is None else f"{summary.goodput.ratio:.0%}",
            "-" if summary.cached_ratio is None else f"{summary.cached_ratio:.0%}",
            str(summary.failed),
        )
    return shown


def _percentiles(distribution: Distribution | None) -> str:
    return "-" if distribution is None else f"{distribution.p50:.0f} / {distribution.p95:.0f}"


def document(arguments: argparse.Namespace, results: list[dict[str, Any]], started: Started | None) -> dict[str, Any]:
    """The run as plain data."""
    start = started and {
        "first_answer_s": round(started.first_answer_s, 3),
        "peak_pss_mb": round(started.memory.peak_bytes / 1e6, 1),
    }
    return {
        "format": "kvarn-workloads/1",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "shape": arguments.shape,
        "server": arguments.url or "kvarn serve",
        "start": start,
        "results": msgspec.to_builtins(results),
    }


def workload_names(text: str) -> list[str]:
    """Read `W1,W3`."""
    names = text.upper().split(",")
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(WORKLOADS)}")
    return names


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Run the workloads W1 to W5.")
    parser.add_argument("--workloads", type=workload_names, default=list(WORKLOADS), help="such as W1,W3; default all")
    parser.add_argument("--shape", choices=[DEMO, *SHAPES], default="0.6b", help="model; demo is kvarn-demo")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="measure this running server instead of starting one (with --model)")
    parser.add_argument("--model", help="name of the model on that server")
    parser.add_argument("--kv-gib", type=float, help="KV cache of the started server, GiB")
    parser.add_argument("--threads", type=int, help="kernel threads of the started server")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder that keeps made models")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--no-warm-up", dest="warm_up", action="store_false")
    read = parser.parse_args(arguments)
    if read.url and not read.model:
        parser.error("--url needs --model")
    return read


def model_of(shape: str, cache: Path, console: Console) -> tuple[str, str]:
    """Name and path of the model to serve; made first where it must be."""
    if shape == DEMO:
        return "kvarn-demo", "kvarn-demo"
    if not (cache / SHAPES[shape].name / "config.json").exists():
        console.print(f"making {SHAPES[shape].name} in {cache} (once; about a minute) ...")
    return SHAPES[shape].name, str(make_model(SHAPES[shape], cache))


def main() -> int:
    """0 if every request succeeded, 1 if some failed, 130 if the run was interrupted."""
    arguments, console = parse(), Console(stderr=True)
    started = None
    results: list[dict[str, Any]] = []
    try:
        if arguments.url:
            results = measure(arguments, arguments.url, arguments.model, console)
        else:
            model, path = model_of(arguments.shape, arguments.cache, console)
            asked = {"dtype": arguments.dtype, "kv_cache_gib": arguments.kv_gib, "threads": arguments.threads}
            settings = {name: value for name, value in asked.items() if value is not None}
            with (
                tempfile.TemporaryDirectory() as folder,
                serving(model, path, Path(folder) / "serve.log", settings) as started,
            ):
                console.print(f"first answer after {started.first_answer_s:.2f} s")
                results = measure(arguments, started.url, started.model, console)
    except (BenchError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    Console().print(
        table(results, f"{arguments.shape} at {arguments.url or 'kvarn serve'} (tokens/s, latencies in ms)")
    )
    if started is not None:
        print(f"start {started.first_answer_s:.2f} s, peak memory {started.memory.peak_bytes / 1e6:,.0f} MB (PSS)")
    if arguments.json:
        arguments.json.write_text(json.dumps(document(arguments, results, started), indent=1) + "\n", encoding="utf-8")
    if any(result["summary"].interrupted for result in results):
        return INTERRUPTED
    return int(any(result["summary"].failed for result in results))


if __name__ == "__main__":
    sys.exit(main())
