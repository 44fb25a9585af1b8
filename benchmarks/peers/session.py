"""The run: engines take turns; each is started, warmed, measured and stopped.

The first round of all classes comes before the second of any, and each round begins with another engine: what slows a
machine for a while (heat, neighbours, a cron job) hits engines alike. W6 needs the best peer's rate on W3, so it joins
once a round has told it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import uvloop
from rich.console import Console

from benchmarks.models import SHAPES
from benchmarks.peers.engines import Case, Engine, Precision
from benchmarks.peers.records import Failure, Installation, Ledger, Machine, Measurement, Rate, Record, measurements
from benchmarks.peers.records import Session as SessionRecord
from benchmarks.peers.workshop import PrepareError, Workshop
from benchmarks.run import SHAPE_IDS
from benchmarks.server import ServerError, Started, free_port, running
from benchmarks.workloads import SLO, WARM_UP, WORKLOADS
from kvarn.bench.driver import Job, Run
from kvarn.bench.export import environment
from kvarn.bench.summary import Summary, summarise
from kvarn.bench.target import Target
from kvarn.traffic.workload import poisson_arrivals, warm_up_requests

W6 = "W6"
"""W3's requests as an open loop."""
NAMES = (*WORKLOADS, W6)
W6_SHARE = 0.8
"""Of the best peer's request rate on W3."""
SMOKE_OUTPUT = 4
"""Tokens of an answer in a smoke run."""
WARM_UP_SEED = 1_000_000
ENDING_S = 3.0
"""Connections break before a process that falls has ended: it is given so long."""


class LoadError(Exception):
    """A workload could not be run at all; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What to run."""

    shapes: Sequence[str]
    precisions: Sequence[Precision]
    workloads: Sequence[str]
    rounds: int = 3
    limit_s: float = 300.0
    """A workload that takes longer is cut off, and left out of the later rounds."""
    start_limit_s: float = 900.0
    rate: float | None = None
    """Of W6, requests/s; None takes it from the best peer."""
    smoke: bool = False
    """One batch of short requests of each workload."""
    minutes: float = math.inf
    """No engine is started later than this after the start of the run."""


@dataclass(frozen=True)
class Session:
    """One start of one engine, and what is measured before it is stopped."""

    shape: str
    precision: Precision
    engine: str
    round: int
    workloads: tuple[str, ...]

    @property
    def who(self) -> dict[str, Any]:
        return {"shape": self.shape, "precision": self.precision, "engine": self.engine, "round": self.round}


def plan(suite: Suite, engines: dict[str, Engine]) -> list[Session]:
    """All sessions in their order."""
    planned = []
    for turn in range(suite.rounds):
        for shape in suite.shapes:
            for precision in suite.precisions:
                names = [name for name, each in engines.items() if precision in each.notes]
                start = turn % len(names) if names else 0
                for name in (*names[start:], *names[:start]):
                    planned.append(Session(shape, precision, name, turn, tuple(suite.workloads)))
    return planned


def left_of(session: Session, records: Iterable[Record]) -> Session:
    """What of a session is still to do: not what was measured, nor in later rounds what could not be done in time."""
    measured = measurements(records)
    done = {each.key for each in measured}
    hopeless = {each.key[:3] + each.key[4:] for each in measured if each.cut_after_s is not None}
    who = (session.shape, session.precision, session.engine)
    names = [
        name for name in session.workloads if (*who, session.round, name) not in done and (*who, name) not in hopeless
    ]
    return replace(session, workloads=tuple(names))


def chosen_rate(records: Iterable[Record], shape: str, precision: str) -> float | None:
    """The rate of W6 by the best peer's on W3 in the earliest round; None where none has finished it."""
    reached = [
        each
        for each in measurements(records)
        if (each.shape, each.precision, each.workload) == (shape, precision, "W3")
        and each.engine != "kvarn"
        and each.whole
    ]
    first = min((each.round for each in reached), default=0)
    rates = [each.summary.requests_per_s for each in reached if each.round == first]
    return W6_SHARE * max(rates) if rates else None


class Runner:
    """Runs a suite and keeps what it finds in a ledger."""

    def __init__(
        self, suite: Suite, engines: dict[str, Engine], shop: Workshop, ledger: Ledger, console: Console
    ) -> None:
        self._suite, self._engines, self._shop, self._ledger = suite, engines, shop, ledger
        self._console = console
        self._gave_up: set[tuple[str, str, str]] = set()
        """Engines that did not start are not started again in the same class, until a run is resumed."""

    def run(self) -> None:
        """All sessions that are still to do, or those that time allows."""
        end = time.monotonic() + 60 * self._suite.minutes
        now = datetime.now(UTC).isoformat(timespec="seconds")
        settings = asdict(self._suite) | {"engines": list(self._engines)}
        settings["minutes"] = None if math.isinf(self._suite.minutes) else self._suite.minutes
        self._ledger.add(Machine(started_at=now, environment=environment(), settings=settings))
        for name, engine in self._engines.items():
            with contextlib.suppress(PrepareError):  # its sessions say so
                self._ledger.add(Installation(engine=name, **engine.installed(self._shop)._asdict()))
        for session in plan(self._suite, self._engines):
            if time.monotonic() > end:
                self._console.print("the time is up; go on with --resume", highlight=False)
                return
            self._run(left_of(session, self._ledger.records))

    def _run(self, session: Session) -> None:
        rate = self._rate(session)
        if rate is None:
            session = replace(session, workloads=tuple(name for name in session.workloads if name != W6))
        name = (session.shape, session.precision, session.engine)
        if not session.workloads or name in self._gave_up:
            return
        case, engine = Case(SHAPES[session.shape], session.precision), self._engines[session.engine]
        self._say(session, f"starting ({', '.join(session.workloads)})")
        try:
            if reason := engine.obstacle(self._shop, case):
                raise ServerError(reason)
            port = free_port()
            launch = engine.launch(self._shop, case, port)
            log = self._shop.log(f"run-{session.engine}-{case.label}-{session.round + 1}")
            place = {"environment": launch.environment, "folder": launch.folder}
            with running(launch.command, port, log, limit_s=self._suite.start_limit_s, **place) as server:  # type: ignore[arg-type]
                self._say(session, f"first answer after {server.first_answer_s:.1f} s")
                self._measure_all(session, server, rate)
                self._ledger.add(
                    SessionRecord(
                        **session.who,
                        first_answer_s=round(server.first_answer_s, 3),
                        peak_pss_bytes=server.memory.sample(),
                        command=launch.command,
                    )
                )
        except (ServerError, LoadError) as error:
            self._gave_up.add(name)
            self._fail(session, str(error))

    def _measure_all(self, session: Session, server: Started, rate: float | None) -> None:
        limit = self._suite.limit_s
        target = Target(url=server.url, model=server.model, vocabulary=SHAPE_IDS, timeout_s=limit)
        if not self._suite.smoke:
            warm_up(target, limit)
        for name in session.workloads:
            load = os.getloadavg()[0]
            seeded = msgspec.structs.replace(target, seed=seed_of(session.round, name))
            asked = job(name, seeded, rate, is_smoke=self._suite.smoke)
            try:
                summary, cut = measure(asked, limit)
                server.must_run(within_s=ENDING_S if summary.errors else 0.0)
            except ServerError as error:
                self._fail(session, str(error), name)
                return
            except LoadError as error:
                self._fail(session, str(error), name)
                continue
            measured = Measurement(
                **session.who,
                workload=name,
                summary=summary,
                cut_after_s=limit if cut else None,
                load_before=round(load, 2),
            )
            self._ledger.add(measured)
            why = ", ".join(summary.errors) or (f"cut off after {limit:g} s" if cut else "wrong length")
            rest = "" if measured.whole else f", {summary.succeeded} of {len(asked.requests)} answered ({why})"
            self._say(session, f"{name}: {summary.output_tokens_per_s:.1f} output tokens/s{rest}")

    def _rate(self, session: Session) -> float | None:
        """The rate of W6 in this class, fixed when it is first known."""
        for each in self._ledger.records:
            if isinstance(each, Rate) and (each.shape, each.precision) == (session.shape, session.precision):
                return each.requests_per_s
        found = self._suite.rate
        if found is None and session.round > 0:
            found = chosen_rate(self._ledger.records, session.shape, session.precision)
        if found is not None and W6 in session.workloads:
            self._ledger.add(Rate(shape=session.shape, precision=session.precision, requests_per_s=found))
        return found

    def _fail(self, session: Session, reason: str, workload: str | None = None) -> None:
        self._ledger.add(Failure(**session.who, workload=workload, reason=reason))
        self._say(session, f"{workload or 'not measured'}: {reason}")

    def _say(self, session: Session, text: str) -> None:
        who = f"{session.shape} {session.precision} round {session.round + 1} {session.engine}"
        self._console.print(f"{datetime.now():%H:%M:%S}  {who}: {text}", markup=False, highlight=False)


def seed_of(turn: int, name: str) -> int:
    """Prompts differ between rounds and workloads, and are the same for all engines."""
    return 1 + 100 * turn + NAMES.index(name)


def job(name: str, target: Target, rate: float | None, *, is_smoke: bool = False) -> Job:
    """What to send. A smoke run sends as many requests at once as the workload has, with short answers: a server that
    refuses some of them shows it."""
    workload = WORKLOADS["W3" if name == W6 else name]
    if is_smoke:
        workload = replace(workload, requests=workload.concurrency, output=min(workload.output, SMOKE_OUTPUT))
    requests = workload.make(target.seed)
    if name != W6:
        warm = warm_up_requests(requests, workload.warm_requests)
        return Job(target=target, requests=requests, concurrency=workload.concurrency, warm_up=warm)
    assert rate is not None, "W6 is planned once its rate is known"
    arrivals = poisson_arrivals(rate, seed=target.seed, count=len(requests))
    timed = [msgspec.structs.replace(each, arrival_s=arrival) for each, arrival in zip(requests, arrivals, strict=True)]
    return Job(target=target, requests=timed)


def measure(asked: Job, limit_s: float) -> tuple[Summary, bool]:
    """Run a job for at most `limit_s`; its figures, and whether it was cut off.

    Raises:
        LoadError: A warm-up request failed, so that nothing was measured.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(asked, limit_s))


async def _measure(asked: Job, limit_s: float) -> tuple[Summary, bool]:
    run = Run(asked)
    for record in await run.warm_up():
        if record.error is not None:
            raise LoadError(f"a warm-up request failed ({record.error}): {record.message}")
    work = asyncio.create_task(run.measure())
    await asyncio.wait({work}, timeout=limit_s)
    cut = not work.done()
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return summarise(run.outcome(interrupted=cut), SLO), cut


def warm_up(target: Target, limit_s: float) -> None:
    """Send a little of everything, so that no engine is measured while it still warms its caches. Raises LoadError."""
    for workload in WARM_UP:
        requests = workload.make(WARM_UP_SEED)
        summary, _ = measure(Job(target=target, requests=requests, concurrency=workload.concurrency), limit_s)
        if summary.failed:
            raise LoadError(f"{summary.failed} requests of the warm-up failed: {summary.errors}")
