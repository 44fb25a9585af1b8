"""The suite against peers with engines made for the test: the wrapper's stream, whole runs, failures, resumption."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest

from kvarn.bench.driver import Job
from kvarn.bench.session import run_job
from kvarn.bench.target import Target
from kvarn.bench.workload import Lengths, synthetic_requests

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


ENGINE = textwrap.dedent(
    """
    import sys, time
    from benchmarks.peers.wrappers.front import serve
    def engine(inbox):
        while True:
            job = inbox.get()
            for place in range(job.max_tokens):
                time.sleep(float(sys.argv[2]))
                job.emit([300 + place], place + 1 == job.max_tokens)
    serve(engine, int(sys.argv[1]))
    """
)


@dataclass(frozen=True)
class Fake:
    """An engine behind the real wrapper; `broken` makes it refuse or end."""

    name: str
    folder: Path
    gap_s: float = 0.0
    broken: str = ""
    title: str = "fake"

    def precision_note(self, precision):
        return None if self.broken == f"no {precision}" else "as it is"

    def obstacle(self, shop, case):
        return self.broken if self.broken == "not installed" else None

    def launch(self, shop, case, port):
        from benchmarks.peers.engines.base import Launch

        program = "raise ValueError('no such format')" if self.broken == "dies" else ENGINE
        command = [sys.executable, "-c", program, str(port), str(self.gap_s)]
        return Launch(command, {"PYTHONPATH": str(ROOT)})

    def installed(self, shop):
        from benchmarks.peers.engines.base import Installed

        return Installed("fake 1", 2000, 1000)


@pytest.fixture
def server(tmp_path):
    """Start a fake engine behind the wrapper; its URL."""
    from benchmarks.peers.process import running
    from benchmarks.server import free_port

    running_servers = []

    def start(gap_s=0.0):
        port = free_port()
        launch = Fake("fake", tmp_path, gap_s).launch(None, None, port)
        context = running(launch, port, tmp_path / "log", 60)
        running_servers.append(context)
        return context.__enter__()

    yield start
    for context in running_servers:
        context.__exit__(None, None, None)


def test_the_wrapper_streams_what_the_load_generator_asks_for(server):
    url = server(gap_s=0.002).url
    requests = synthetic_requests(count=6, prompt=Lengths(20, 20), output=Lengths(7, 7))
    outcome = run_job(Job(target=Target(url=url, model="m"), requests=requests, concurrency=3))
    assert [record.error for record in outcome.records] == [None] * 6
    assert {(each.prompt_tokens, each.output_tokens, len(each.chunk_times)) for each in outcome.records} == {(20, 7, 7)}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a suite of fakes over workloads made small; its records, and the lines it said."""
    from benchmarks.peers.records import Limits
    from benchmarks.workloads import WORKLOADS
    from rich.console import Console

    limits = Limits(bytes_per_s=30e9, operations_per_s={"bf16": 2e11})
    monkeypatch.setattr("benchmarks.peers.session.measured_limits", lambda: limits)
    small = {name: replace(each, requests=8, output=8) for name, each in WORKLOADS.items()}
    monkeypatch.setattr("benchmarks.peers.load.WORKLOADS", small)
    monkeypatch.setattr("benchmarks.peers.session.warm_up", lambda _target, _limit: None)

    def go(*engines, workloads=("W1",), resume=False, **fields):
        from benchmarks.peers.engines.base import Precision
        from benchmarks.peers.records import Ledger
        from benchmarks.peers.session import Runner, Suite
        from benchmarks.peers.workshop import Workshop

        plain = {"rounds": 1, "limit_s": 30.0, "start_limit_s": 60.0, "shapes": ["0.6b"]}
        suite = Suite(
            engines={each.name: each for each in engines},
            precisions=fields.pop("precisions", [Precision.BF16]),
            workloads=workloads,
            **(plain | fields),
        )
        ledger, said = Ledger.open(tmp_path / "results.jsonl", resume=resume), StringIO()
        shop = Workshop(tmp_path / "cache", tmp_path / "models")
        Runner(suite, shop, ledger, Console(file=said, width=200)).run()
        return ledger.records, said.getvalue()

    return go


def kinds(records, kind):
    from benchmarks.peers import records as module

    return [each for each in records if isinstance(each, getattr(module, kind))]


def test_a_run_measures_all_and_w6_at_the_best_peers_rate(run, tmp_path):
    records, _ = run(Fake("kvarn", tmp_path), Fake("peer", tmp_path, 0.0005), workloads=("W1", "W3", "W6"))
    measured = [(each.engine, each.workload) for each in kinds(records, "Measurement")]
    assert measured == [(one, name) for one in ("kvarn", "peer") for name in ("W1", "W3")] + [
        ("peer", "W6"),
        ("kvarn", "W6"),
    ]
    assert all(each.whole for each in kinds(records, "Measurement"))
    (rate,) = kinds(records, "Rate")
    w3 = next(each for each in kinds(records, "Measurement") if (each.engine, each.workload) == ("peer", "W3"))
    assert rate.requests_per_s == pytest.approx(0.8 * w3.summary.requests_per_s)
    assert [each.peak_pss_bytes > 0 for each in kinds(records, "Stop")] == [True] * 4
    assert {each.version for each in kinds(records, "Installation")} == {"fake 1"}
    assert len(kinds(records, "Limits")) == 1


def test_engines_that_cannot_run_are_reported_and_the_others_measured(run, tmp_path):
    from benchmarks.peers.engines.base import Precision

    records, said = run(
        Fake("kvarn", tmp_path, broken="dies"),
        Fake("absent", tmp_path, broken="not installed"),
        Fake("peer", tmp_path, broken="no int8"),
        precisions=[Precision.BF16, Precision.INT8],
        rounds=2,
    )
    assert [(each.engine, each.precision) for each in kinds(records, "Measurement")] == [("peer", "bf16")] * 2
    failed = {(each.engine, each.precision): each.reason for each in kinds(records, "Failure")}
    assert "ValueError: no such format" in failed["kvarn", "bf16"]
    assert failed["absent", "int8"] == "not installed"
    assert len(failed) == len(kinds(records, "Failure")) == 4
    assert "no such format" in said


def test_a_resumed_run_does_what_is_left_and_tries_again_what_failed(run, tmp_path):
    run(Fake("kvarn", tmp_path), Fake("peer", tmp_path, broken="dies"), rounds=2)
    records, said = run(Fake("kvarn", tmp_path), Fake("peer", tmp_path), rounds=2, resume=True)
    measured = [(each.engine, each.round) for each in kinds(records, "Measurement")]
    assert sorted(measured) == [("kvarn", 0), ("kvarn", 1), ("peer", 0), ("peer", 1)]
    assert "kvarn" not in said
