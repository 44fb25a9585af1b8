"""The load of one workload: the closed loops W1 to W5, and W6, W3's requests as an open loop."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import msgspec
import uvloop

from benchmarks.peers.plan import W6
from benchmarks.run import SHAPE_IDS
from benchmarks.workloads import SLO, WARM_UP, WORKLOADS, Workload
from kvarn.bench.driver import Job, Run
from kvarn.bench.summary import Summary, summarise
from kvarn.bench.target import Target
from kvarn.bench.workload import poisson_arrivals, warm_up_requests

NAMES = (*WORKLOADS, W6)
WARM_UP_SEED = 1_000_000
SMOKE_OUTPUT = 4
"""Tokens of an answer in a smoke run."""


class LoadError(Exception):
    """A workload could not be run at all; the message says why."""


def smoke(workload: Workload) -> Workload:
    """As many requests at once as the workload has, with short answers: a server that refuses some of them shows it."""
    return replace(workload, requests=workload.concurrency, output=min(workload.output, SMOKE_OUTPUT))


def seed_of(round_: int, name: str) -> int:
    """Prompts differ between rounds and workloads, and are the same for all engines."""
    return 1 + 100 * round_ + NAMES.index(name)


def job(name: str, target: Target, rate: float | None, *, is_smoke: bool = False) -> Job:
    """What to send. W6 has W3's requests, at the arrival times of a Poisson process of `rate` requests/s."""
    workload = WORKLOADS["W3" if name == W6 else name]
    if is_smoke:
        workload = smoke(workload)
    requests = workload.make(target.seed)
    if name != W6:
        warm = warm_up_requests(requests, workload.warm_requests)
        return Job(target=target, requests=requests, concurrency=workload.concurrency, warm_up=warm)
    if rate is None:
        raise LoadError("no peer has finished W3, so W6 has no rate")
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
    try:
        async with asyncio.timeout(limit_s):
            warmed = await run.warm_up()
    except TimeoutError:
        raise LoadError(f"the warm-up request was not answered within {limit_s:g} s") from None
    if failed := [record for record in warmed if record.error is not None]:
        raise LoadError(f"a warm-up request failed ({failed[0].error}): {failed[0].message}")
    work = asyncio.create_task(run.measure())
    await asyncio.wait({work}, timeout=limit_s)
    cut = not work.done()
    if cut:
        work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return summarise(run.outcome(interrupted=cut), SLO), cut


def warm_up(target: Target, limit_s: float) -> None:
    """What is sent after each start, so that no engine is measured while it still warms its caches.

    What takes longer than the limit is cut off.

    Raises:
        LoadError: A request failed: measuring would be in vain.
    """
    for workload in WARM_UP:
        seeded: dict[str, Any] = {"target": target, "requests": workload.make(WARM_UP_SEED)}
        summary, _ = measure(Job(**seeded, concurrency=workload.concurrency), limit_s)
        if summary.failed:
            raise LoadError(f"{summary.failed} requests of the warm-up failed: {summary.errors}")


def target_at(url: str, model: str, seed: int, limit_s: float) -> Target:
    """A server to send to."""
    return Target(url=url, model=model, vocabulary=SHAPE_IDS, seed=seed, timeout_s=limit_s)
