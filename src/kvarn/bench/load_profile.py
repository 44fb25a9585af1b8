"""Measurement of a server under load: the time between its engine's steps, and the time around them.

A server is started with a record of its engine's schedule and loaded by several numbers of clients. The record tells
when each step began and ended and how long the executor took; the clients tell when they had their first tokens; the
system tells how long the gateway's process computed.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from kvarn.bench.driver import Job
from kvarn.bench.records import Record
from kvarn.bench.session import BenchError, first_model, run_job
from kvarn.bench.step_profile import StepSample
from kvarn.bench.target import Target
from kvarn.clock import SYSTEM_CLOCK
from kvarn.costs.replica_model import Distribution
from kvarn.costs.step_times import StepShape
from kvarn.engine.schedule_record import Add, Event, Step
from kvarn.replica.session_work import process_cpu_s
from kvarn.simulator.schedule_replay import read_schedule
from kvarn.traffic.workload import Lengths, Vocabulary, synthetic_requests

_START_LIMIT_S = 900.0
_STOP_LIMIT_S = 20.0
_PARTS = 200
"""Equal parts of the measured values, each kept as its mean: so the whole keeps its mean, however long its tail is."""


_FEW = 3
"""Steps whose median is trusted."""


class ProfileError(Exception):
    """The server cannot be profiled; the message says why."""


class LoadProfile(msgspec.Struct, kw_only=True):
    """Measurements under load."""

    overhead_s: Distribution
    """Seconds from the end of a step to the beginning of the next one's work, where work was there, less those of its
    sequences."""
    overhead_row_s: float
    """Seconds that each sequence of a step adds to them."""
    answer_s: Distribution
    """Seconds of a request until its first token that no step accounts for."""
    gateway_s: float
    """Processor seconds of the gateway's process for each request with an answer of one token."""
    start_s: float
    """Seconds from the start of the engine's process until it is ready."""
    steps: list[StepSample]


class _Timed(NamedTuple):
    """A step as the record has it."""

    shape: StepShape
    begin_s: float
    """Beginning of `EngineCore.step`."""
    end_s: float
    elapsed_s: float
    follows: bool
    """Whether the engine had work all the time since the step before it."""


def profile_under_load(
    settings: dict[str, Any],
    *,
    clients: Sequence[int],
    requests: int,
    prompt: Lengths,
    output: Lengths,
    vocabulary: Vocabulary,
) -> LoadProfile:
    """Start a server with one model (`settings`: its configuration), have a single client and then each number of
    clients send it `requests` requests, and stop it. Raises `ProfileError`."""
    with TemporaryDirectory(prefix="kvarn-profile-") as name:
        folder = Path(name)
        engine = {**settings.get("engine", {}), "schedule_folder": str(folder / "schedules")}
        model = {**settings, "name": "profiled", "engine": engine, "speculation": {"method": "none"}}
        with _server(model, folder) as (url, gateway):
            target = Target(url=url, model="profiled", vocabulary=vocabulary)
            alone, prompts = _load(target, 0, 1, requests, prompt, output)
            for number, concurrency in enumerate(clients, start=1):
                _load(target, number, concurrency, max(requests, 2 * concurrency), prompt, output)
            begin_s = process_cpu_s(gateway)
            _load(target, 1 + len(clients), max(clients, default=1), requests, prompt, Lengths(1, 1))
            gateway_s = (process_cpu_s(gateway) - begin_s) / requests
        (path,) = (folder / "schedules").iterdir()
        events = list(read_schedule(path))
        start_s = _engine_start_s(folder / "serve.log")
    steps = timed_steps(events)
    between = overheads(steps)
    row_s = _slope(between)
    return LoadProfile(
        overhead_s=distribution([max(0.0, seconds - row_s * rows) for rows, seconds in between]),
        overhead_row_s=row_s,
        answer_s=distribution(_answer_times(events, steps, alone, prompts)),
        gateway_s=gateway_s,
        start_s=start_s,
        steps=[StepSample(step.shape, step.elapsed_s) for step in steps],
    )


def _load(
    target: Target, seed: int, clients: int, count: int, prompt: Lengths, output: Lengths
) -> tuple[list[Record], list[list[int]]]:
    """Records of a closed loop, by the numbers of the requests, and the requests' prompts."""
    requests = synthetic_requests(count=count, prompt=prompt, output=output, seed=seed)
    try:
        outcome = run_job(
            Job(target=msgspec.structs.replace(target, seed=seed), requests=requests, concurrency=clients)
        )
    except BenchError as error:
        raise ProfileError(str(error)) from None
    failed = [record for record in outcome.records if record.error is not None]
    if failed:
        raise ProfileError(f"{len(failed)} of {count} requests failed: {failed[0].error}: {failed[0].message}")
    records = sorted(outcome.records, key=lambda record: record.index)
    return records, [request.token_ids(target.vocabulary, seed) for request in requests]


def timed_steps(events: Sequence[Event]) -> list[_Timed]:
    """Steps of a record, of an engine that has one in flight at a time."""
    steps: list[_Timed] = []
    is_busy = False
    for event in events:
        if not isinstance(event, Step):
            continue
        if event.taken is None or not event.planned:
            is_busy = False
            continue
        shape = StepShape()
        for row in event.planned[0].rows:
            shape.add(row.start, row.num_tokens - row.num_proposals)
            if row.num_proposals:
                shape.add_proposals(row.end, row.num_proposals)
        timed = _Timed(shape, event.readings[0], event.readings[-1], event.taken.elapsed_s, is_busy)
        steps.append(timed)
        is_busy = event.busy
    return steps


def overheads(steps: Sequence[_Timed]) -> list[tuple[int, float]]:
    """Sequences of each step that followed another at once, and the seconds from the end of that one to its own, less
    the executor's work."""
    pairs = itertools.pairwise(steps)
    return [
        (after.shape.decode_rows, after.end_s - before.end_s - after.elapsed_s)
        for before, after in pairs
        if after.follows and not after.shape.prefill_tokens
    ]


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """Seconds for each sequence: of the line through the medians at each number of sequences, at least 0."""
    found: dict[int, list[float]] = {}
    for rows, seconds in points:
        found.setdefault(rows, []).append(seconds)
    medians = [(rows, statistics.median(own)) for rows, own in found.items() if len(own) >= _FEW]
    if len(medians) < 2:
        return 0.0
    return max(0.0, statistics.linear_regression(*zip(*medians, strict=True)).slope)


def _answer_times(
    events: Sequence[Event], steps: Sequence[_Timed], records: Sequence[Record], prompts: Sequence[list[int]]
) -> list[float]:
    """Seconds of each request of a single client until its first token, less those of its steps and between them."""
    numbers = {tuple(prompt): number for number, prompt in enumerate(prompts)}
    came: dict[int, tuple[int, float]] = {}  # by arrival number: which record, when the engine had it
    spent: dict[int, float] = {}  # seconds in the engine, by record
    timed = iter(steps)
    for event in events:
        if isinstance(event, Add) and (number := numbers.get(tuple(event.submit.prompt_token_ids))) is not None:
            came[event.order] = (number, event.readings[0])
        if not isinstance(event, Step) or event.taken is None or not event.planned:
            continue
        step = next(timed)
        for row, drawn in zip(event.planned[0].rows, event.taken.drawn, strict=True):
            if drawn and row.order in came:
                number, came_s = came.pop(row.order)
                began = 0.0 if step.follows else step.end_s - step.elapsed_s - came_s  # the first of its steps
                spent[number] = step.end_s - came_s - began
    return [record.ttft_s - spent[record.index] for record in records if record.index in spent]


def distribution(values: Sequence[float]) -> Distribution:
    """Measured values by their quantiles."""
    ordered, count = sorted(values), min(_PARTS, len(values))
    if not count:
        return Distribution()
    bounds = [len(ordered) * part // count for part in range(count + 1)]
    return Distribution(tuple(statistics.fmean(ordered[low:high]) for low, high in itertools.pairwise(bounds)))


@contextlib.contextmanager
def _server(model: dict[str, Any], folder: Path) -> Iterator[tuple[str, int]]:
    """A server with this model, by its URL and the process of its gateway. Raises `ProfileError`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config, log = folder / "serve.yaml", folder / "serve.log"
    sections = {"models": [model], "gateway": {"port": port}, "data_dir": str(folder / "data")}
    config.write_text(msgspec.json.encode(sections).decode(), encoding="utf-8")  # JSON is YAML
    url = f"http://127.0.0.1:{port}"
    until_s = SYSTEM_CLOCK.now() + _START_LIMIT_S
    with log.open("wb") as output:
        command = [str(Path(sys.executable).with_name("kvarn")), "serve", "--config", str(config)]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _await_answer(process, Target(url=url, model="profiled"), log, until_s)
        yield url, process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _engine_start_s(log: Path) -> float:
    """Seconds of the engine's start, as the server's log tells them."""
    told = re.search(r"the engine is ready.* model=profiled .*total_s=([\d.]+)", log.read_text(errors="replace"))
    if told is None:
        raise ProfileError("the server's log does not tell how long its engine took to start")
    return float(told[1])


def _await_answer(process: subprocess.Popen[bytes], target: Target, log: Path, until_s: float) -> None:
    """Wait for the server's first answer."""
    request = synthetic_requests(count=1, prompt=Lengths(4, 4), output=Lengths(1, 1), seed=1 << 20)
    while process.poll() is None and SYSTEM_CLOCK.now() < until_s:
        try:
            first_model(target)
            outcome = run_job(Job(target=target, requests=request, concurrency=1))
            if all(record.error is None for record in outcome.records):
                return
        except BenchError:
            pass
        SYSTEM_CLOCK.sleep(0.1)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise ProfileError(f"the server does not answer; its log ends with: {lines[-1][:300] if lines else 'nothing'}")
