"""One session: start an engine, warm it, measure it, stop it; and the run, which is all sessions in their order."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from benchmarks.models import SHAPES
from benchmarks.peers.engines import KVARN
from benchmarks.peers.engines.base import Case, Engine, Precision
from benchmarks.peers.limits import LimitsError, measured_limits
from benchmarks.peers.load import LoadError, job, measure, seed_of, target_at, warm_up
from benchmarks.peers.plan import W6, Session, chosen_rate, gave_up, in_order, known_rate, left_of, rounds_of
from benchmarks.peers.process import EndedError, Running, StartError, running
from benchmarks.peers.records import Failure, Installation, Ledger, Machine, Measurement, Rate, Start, Stop
from benchmarks.peers.workshop import PrepareError, Workshop
from benchmarks.server import free_port
from kvarn.bench.export import environment

ENDING_S = 3.0
"""An engine that answered with errors is given so long to end before it counts as running."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What to run."""

    engines: dict[str, Engine]
    shapes: Sequence[str]
    precisions: Sequence[Precision]
    workloads: Sequence[str]
    rounds: int
    limit_s: float
    """A workload that takes longer is cut off, and left out of the later rounds."""
    start_limit_s: float
    rate: float | None = None
    """Of W6, requests/s; None takes it from the best peer."""
    smoke: bool = False
    minutes: float = math.inf
    """No engine is started later than this after the start of the run."""

    def settings(self) -> dict[str, Any]:
        """For the record."""
        return {
            "engines": list(self.engines),
            "shapes": list(self.shapes),
            "precisions": [str(each) for each in self.precisions],
            "workloads": list(self.workloads),
            "rounds": self.rounds,
            "limit_s": self.limit_s,
            "smoke": self.smoke,
        }


class Runner:
    """Runs a suite and keeps what it finds in a ledger."""

    def __init__(self, suite: Suite, shop: Workshop, ledger: Ledger, console: Console) -> None:
        self._suite = suite
        self._shop = shop
        self._ledger = ledger
        self._console = console
        self._deadline = time.monotonic() + 60 * suite.minutes
        self._before = len(ledger.records)
        """Failures from before a resumption do not count: what failed then is tried again once."""

    def run(self) -> None:
        """All sessions that are still to do, or those that time allows."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._ledger.add(Machine(started_at=now, environment=environment(), settings=self._suite.settings()))
        self._sizes()
        self._limits()
        for session in self._planned():
            if time.monotonic() > self._deadline:
                self._console.print("the time is up; go on with --resume", highlight=False)
                return
            self._session(session)

    def _planned(self) -> list[Session]:
        suite, planned = self._suite, []
        for shape in suite.shapes:
            for precision in suite.precisions:
                engines = [name for name, each in suite.engines.items() if each.precision_note(precision)]
                planned.append(rounds_of(shape, precision, engines, suite.workloads, suite.rounds))
        return in_order(planned)

    def _sizes(self) -> None:
        known = {each.engine for each in self._ledger.records if isinstance(each, Installation)}
        for name, engine in self._suite.engines.items():
            if name in known:
                continue
            try:
                found = engine.installed(self._shop)
            except PrepareError as error:
                self._console.print(f"{name}: {error}", markup=False, highlight=False)
                continue
            self._ledger.add(
                Installation(
                    engine=name,
                    version=found.version,
                    size_bytes=found.size_bytes,
                    without_torch_bytes=found.without_torch_bytes,
                )
            )

    def _limits(self) -> None:
        if self._suite.smoke:
            return
        try:
            self._ledger.add(measured_limits())
        except LimitsError as error:
            self._console.print(f"no ratio to the roofline: {error}", markup=False, highlight=False)

    def _session(self, planned: Session) -> None:
        session = left_of(planned, self._ledger.records)
        if not session.workloads or gave_up(session, self._ledger.records[self._before :]):
            return
        rate = self._rate(session) if W6 in session.workloads else None
        if session.workloads == (W6,) and rate is None:
            self._fail(session, "no peer has finished W3, so W6 has no rate (give one with --w6-rate)", W6)
            return
        case = Case(SHAPES[session.shape], Precision(session.precision))
        engine = self._suite.engines[session.engine]
        self._say(session, f"starting ({', '.join(session.workloads)})")
        if reason := engine.obstacle(self._shop, case):
            self._fail(session, reason)
            return
        port = free_port()
        try:
            launch = engine.launch(self._shop, case, port)
            log = self._shop.log(f"run-{session.engine}-{case.label}-{session.round + 1}")
            with running(launch, port, log, self._suite.start_limit_s) as server:
                started = {"first_answer_s": round(server.first_answer_s, 3), "command": launch.command}
                self._ledger.add(Start(**self._who(session), **started))
                self._say(session, f"first answer after {server.first_answer_s:.1f} s")
                self._measure_all(session, server, rate)
                self._ledger.add(Stop(**self._who(session), peak_pss_bytes=server.peak_pss_bytes()))
        except (StartError, LoadError) as error:
            self._fail(session, str(error))

    def _measure_all(self, session: Session, server: Running, rate: Rate | None) -> None:
        limit = self._suite.limit_s
        if not self._suite.smoke:
            warm_up(target_at(server.url, server.model, 0, limit), limit)
        for name in session.workloads:
            target = target_at(server.url, server.model, seed_of(session.round, name), limit)
            load = os.getloadavg()[0]
            try:
                asked = job(name, target, rate.requests_per_s if rate else None, is_smoke=self._suite.smoke)
                summary, cut = measure(asked, limit)
                # Connections break before a process that falls has ended.
                server.must_run(within_s=ENDING_S if summary.errors else 0.0)
            except EndedError as error:
                self._fail(session, str(error), name)
                return
            except LoadError as error:
                self._fail(session, str(error), name)
                continue
            measured = Measurement(
                **self._who(session),
                workload=name,
                summary=summary,
                cut_after_s=limit if cut else None,
                smoke=self._suite.smoke,
                load_before=round(load, 2),
            )
            self._ledger.add(measured)
            why = ", ".join(summary.errors) or (f"cut off after {limit:g} s" if cut else "wrong length")
            rest = "" if measured.whole else f", {summary.succeeded} of {len(asked.requests)} answered ({why})"
            self._say(session, f"{name}: {summary.output_tokens_per_s:.1f} output tokens/s{rest}")

    def _rate(self, session: Session) -> Rate | None:
        """The rate of W6 in this class, fixed when it is first asked for."""
        known = known_rate(self._ledger.records, session.shape, session.precision)
        if known is not None:
            return known
        if self._suite.rate is not None:
            found = Rate(
                shape=session.shape,
                precision=session.precision,
                requests_per_s=self._suite.rate,
                because="as asked for",
            )
        else:
            peers = [name for name in self._suite.engines if name != KVARN]
            chosen = chosen_rate(self._ledger.records, session.shape, session.precision, peers)
            if chosen is None:
                return None
            found = chosen
        self._ledger.add(found)
        return found

    def _who(self, session: Session) -> dict[str, Any]:
        return {
            "shape": session.shape,
            "precision": session.precision,
            "engine": session.engine,
            "round": session.round,
        }

    def _fail(self, session: Session, reason: str, workload: str | None = None) -> None:
        self._ledger.add(Failure(**self._who(session), workload=workload, reason=reason))
        self._say(session, f"{workload or 'not measured'}: {reason}")

    def _say(self, session: Session, text: str) -> None:
        who = f"{session.shape} {session.precision} round {session.round + 1} {session.engine}"
        self._console.print(f"{datetime.now():%H:%M:%S}  {who}: {text}", markup=False, highlight=False)
