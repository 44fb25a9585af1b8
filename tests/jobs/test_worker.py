"""The background worker: who holds a job runs it, and nobody else does."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvarn.jobs.named_jobs import NamedWorker
from kvarn.jobs.worker import Job, Worker
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError


@dataclass
class Table:
    """Jobs of several workers, by id: who holds each, if anybody."""

    holders: dict[str, str | None] = field(default_factory=dict)
    away: bool = False


class TableWorker(Worker[Job]):
    """One worker's view of the table."""

    def __init__(self, table: Table, holder: str, run: Any, **options: Any) -> None:
        super().__init__("tests", **options)
        self.table = table
        self.holder = holder
        self.work = run

    async def run(self, job: Job) -> None:
        await self.work(job)

    async def claim(self, free: int) -> list[Job]:
        if self.table.away:
            raise StoreAwayError("the database does not answer")
        ids = [name for name, holder in self.table.holders.items() if holder is None and name not in self.running][
            :free
        ]
        for name in ids:
            self.table.holders[name] = self.holder
        return [Job(name, organization_id="red") for name in ids[:free]]

    async def renew(self, jobs: Any) -> list[str]:
        return [job.id for job in jobs if self.table.holders.get(job.id) == self.holder]

    async def release(self, job: Job) -> None:
        if job.stop_reason == "shutdown":
            self.table.holders[job.id] = None
        elif job.stop_reason is None:
            self.table.holders.pop(job.id, None)


class Gate:
    """Jobs that run until they are let through."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.done: list[str] = []

    async def run(self, job: Job) -> None:
        await self.open.wait()
        self.done.append(job.id)


def worker(table: Table, gate: Gate, holder: str = "here", **options: Any) -> Worker[Job]:
    return TableWorker(table, holder, gate.run, **{"max_running": 2, "poll_s": 60.0, **options})


async def test_no_more_jobs_run_than_there_are_places_and_each_once() -> None:
    table, gate = Table(dict.fromkeys("abc")), Gate()
    here, there = worker(table, gate), worker(table, gate, "there", max_running=1)
    await here.poll()
    await there.poll()
    assert (list(here.running), list(there.running)) == (["a", "b"], ["c"])
    assert here.free == 0 and here.taken_by("red") == 2
    gate.open.set()
    await here.idle()
    await there.idle()
    assert sorted(gate.done) == ["a", "b", "c"] and table.holders == {}


async def test_a_reserved_place_is_not_given_to_another_job() -> None:
    table, gate = Table(dict.fromkeys("ab")), Gate()
    here = worker(table, gate)
    with here.reserve("red"):
        await here.poll()
        assert list(here.running) == ["a"] and here.taken_by("red") == 2
    assert here.free == 1 and here.taken_by("red") == 1
    await here.stop()


async def test_what_another_holds_is_stopped_and_not_released() -> None:
    table, gate = Table({"a": None}), Gate()
    here = worker(table, gate)
    await here.poll()
    job = here.running["a"]
    table.holders["a"] = "there"
    await here.poll()
    assert job.stop_reason == "lost" and not here.running and table.holders == {"a": "there"}


async def test_a_job_whose_end_is_being_written_is_not_lost() -> None:
    table, gate = Table({"a": None}), Gate()
    here = worker(table, gate)
    await here.poll()
    here.running["a"].finishing = True
    del table.holders["a"]
    await here.poll()
    gate.open.set()
    await here.idle()
    assert gate.done == ["a"]


async def test_at_shutdown_leases_are_given_back_also_of_what_had_not_begun() -> None:
    table, gate = Table(dict.fromkeys("ab")), Gate()
    here = worker(table, gate)
    await here.poll()  # neither task has run yet
    await here.stop()
    assert table.holders == {"a": None, "b": None} and gate.done == []


async def test_a_worker_looks_when_it_is_woken_and_waits_while_the_database_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table, gate = Table(away=True), Gate()
    gate.open.set()
    here = worker(table, gate)
    with caplog.at_level(logging.WARNING):
        here.start()
        for _ in range(3):
            here.wake()
            await asyncio.sleep(0.01)
    assert caplog.text.count("wait for the database") == 1
    table.away, table.holders["a"] = False, None
    here.wake()
    async with asyncio.timeout(60):
        while not gate.done:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await here.stop()
    assert gate.done == ["a"]


async def test_a_job_that_fails_is_logged_and_marked(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(job: Job) -> None:
        raise ValueError("no")

    here = TableWorker(Table(), "here", fail, poll_s=60)
    job = Job("a", "red")
    here.launch(job)
    await here.idle()
    assert job.failed and "tests: a failed" in caplog.text


async def test_the_reason_of_a_shutdown_outweighs_a_cancellation() -> None:
    async def slow(job: Job) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            raise

    here = TableWorker(Table(), "here", slow, poll_s=60)
    job = Job("a", "red")
    here.launch(job)
    await asyncio.sleep(0)
    assert not await job.stop("cancelled", 0.0)
    assert await job.stop("shutdown") and job.stop_reason == "shutdown"


async def test_a_named_job_runs_in_one_process_and_another_goes_on_after_its_end(store: Store) -> None:
    gate = Gate()
    here, there = (NamedWorker("tests", store, "work", gate.run, lease_s=60) for _ in range(2))
    await here.poll()
    await there.poll()
    assert list(here.running) == ["work"] and not there.running
    await here.poll()
    assert list(here.running) == ["work"], "a lease is renewed by its holder"
    await here.stop()
    await there.poll()
    assert list(there.running) == ["work"]
    await there.stop()
