"""Throughput with everything that observes switched on against off, in turns.

    python -m benchmarks.observability_overhead --shape 0.6b --rounds 5
    python -m benchmarks.observability_overhead --smoke

W3 (32 streams at a time). On: traces of every request to a collector on this machine, requests kept, the console with a
viewer of its live page, metrics read every 15 s. Off: no traces, nothing kept, no console. Both servers run all
the time, and one is asked at a time, first on then off, then the other way round. The engine's log of steps and the
timelines are always there.

Where two cores are shared by servers, client and viewer, throughput of one round differs from the next by a third. So
the seconds of a processor that the gateway took are told too: what they grow by, as a share of all that the server
took, is the part of the machine that observing costs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console

from benchmarks.models import SHAPES, make_model
from benchmarks.run import DEFAULT_CACHE, DEMO, DEMO_IDS, SHAPE_IDS, run_workload
from benchmarks.server import free_port, process_tree, processor_s, serving
from benchmarks.workloads import SLO, WARM_UP, WORKLOADS
from kvarn.bench.summary import summarise
from kvarn.bench.target import Target

SCRAPE_S = 15.0
"""As in `deploy/prometheus`."""
OFF: dict[str, Any] = {"traces": {"kept": {"enabled": False}}, "console": {"enabled": False}}
NAMES = ("on", "off")


class _Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def _collect(port: int) -> None:
    ThreadingHTTPServer(("127.0.0.1", port), _Collector).serve_forever()


@contextmanager
def collector() -> Iterator[str]:
    """A collector in a process of its own, which reads spans and forgets them; its URL."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_collect, args=(port,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()


@dataclass(frozen=True)
class Spent:
    """Seconds of a processor."""

    gateway_s: float
    all_s: float

    @classmethod
    def of(cls, pid: int) -> Spent:
        """The seconds so far of a server: its main process is the gateway, its descendants are engines."""
        own, *others = map(processor_s, process_tree(pid))
        return cls(own, own + sum(others))

    def since(self, before: Spent) -> Spent:
        return Spent(self.gateway_s - before.gateway_s, self.all_s - before.all_s)


@contextmanager
def watched(url: str, model: str, *, viewer: bool) -> Iterator[None]:
    """A viewer of the live page where there is one, and somebody who reads the metrics."""
    over = threading.Event()

    def view() -> None:
        with suppress(httpx.HTTPError), httpx.stream("GET", f"{url}/console/api/live", params={"model": model}) as live:
            for _ in live.iter_lines():
                if over.is_set():
                    return

    def scrape() -> None:
        with suppress(httpx.HTTPError), httpx.Client() as client:
            while not over.wait(SCRAPE_S):
                client.get(f"{url}/metrics")

    threads = [threading.Thread(target=each, daemon=True) for each in ((view, scrape) if viewer else (scrape,))]
    for thread in threads:
        thread.start()
    yield
    over.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=(DEMO, *SHAPES), default=DEMO)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="W3")
    parser.add_argument("--no-viewer", action="store_true", help="nobody looks at the live page")
    parser.add_argument("--smoke", action="store_true", help="the demo model and one short round")
    asked = parser.parse_args()
    shape, rounds, workload = (DEMO, 1, "W2") if asked.smoke else (asked.shape, asked.rounds, asked.workload)
    path = "kvarn-demo" if shape == DEMO else str(make_model(SHAPES[shape], DEFAULT_CACHE))
    vocabulary = DEMO_IDS if shape == DEMO else SHAPE_IDS
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder, collector() as traces:
        sections = {"on": {"traces": {"endpoint": traces}}, "off": OFF}
        sections = {name: each | {"data_dir": f"{folder}/{name}-data"} for name, each in sections.items()}
        os.environ.pop("KVARN_DATA_DIR", None)
        logs = {name: Path(folder) / f"{name}.log" for name in NAMES}
        with (
            serving("m", path, logs["on"], None, sections["on"]) as on,
            serving("m", path, logs["off"], None, sections["off"]) as off,
        ):
            pids = {"on": on.process.pid, "off": off.process.pid}
            targets = {n: Target(url=s.url, model="m", vocabulary=vocabulary) for n, s in (("on", on), ("off", off))}
            for name in NAMES:
                for warm in () if asked.smoke else WARM_UP:
                    run_workload(warm, targets[name], console)
            speeds: dict[str, list[float]] = {name: [] for name in NAMES}
            spent: dict[str, list[Spent]] = {name: [] for name in NAMES}
            for turn in range(rounds):
                for name in NAMES if turn % 2 == 0 else reversed(NAMES):
                    target = msgspec.structs.replace(targets[name], seed=100 * (turn + 1))
                    before = Spent.of(pids[name])
                    with watched(on.url, "m", viewer=not asked.no_viewer) if name == "on" else nullcontext():
                        outcome = run_workload(WORKLOADS[workload], target, console)
                    spent[name].append(Spent.of(pids[name]).since(before))
                    summary = summarise(outcome, SLO)
                    if summary.failed:
                        raise SystemExit(f"{summary.failed} requests failed, with everything {name}")
                    speeds[name].append(summary.output_tokens_per_s)
    report(shape, workload, speeds, spent)


def report(shape: str, workload: str, speeds: dict[str, list[float]], spent: dict[str, list[Spent]]) -> None:
    for name, each in speeds.items():
        print(f"{workload}, {shape}, {name:3}: {' '.join(f'{one:.1f}' for one in each)} output tokens/s")
    gateway = {name: statistics.median(one.gateway_s for one in each) for name, each in spent.items()}
    all_s = statistics.median(one.all_s for one in spent["off"])
    more = 100 * (gateway["on"] - gateway["off"]) / all_s
    print(
        f"seconds of a processor: gateway {gateway['on']:.2f} on, {gateway['off']:.2f} off; "
        f"all {all_s:.1f}: {more:+.2f} %"
    )
    ratios = [on / off for on, off in zip(speeds["on"], speeds["off"], strict=True)]
    print(f"on / off, by rounds: {' '.join(f'{one:.4f}' for one in ratios)}; median {statistics.median(ratios):.4f}")


if __name__ == "__main__":
    main()
