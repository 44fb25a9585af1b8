"""The lines of a batch that is in progress: a bounded number in flight for each model, until none is open.

A line is an ordinary request of the lowest tier: admission and the engine's queue decide when it runs. Here is only
what keeps it from being lost: what is refused for the moment is tried again, and answers are written until the database
has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from kvarn.batches.endpoints import ENDPOINTS
from kvarn.batches.job import BatchJob
from kvarn.batches.line import Refused, given_up_answer, make_record, run_line
from kvarn.clock import SYSTEM_CLOCK
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.responses.background_runs import ResponsesContext
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.batches.lines import FIRST, Answer, OpenLine, answer_lines, open_lines, read_line

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
_READ_AT_ONCE = 64
_WRITE_AGAIN_S = 1.0
_MAX_LOSSES = 5
"""A line beside which the engine died so often is not tried again: it may be what kills it."""

_log = logging.getLogger("kvarn.batches")


class Backoff:
    """The pause of the lines for one model after a refusal: as long as it says, else 1 s, 2 s, ... 60 s, from the start
    again once a line is answered."""

    def __init__(self) -> None:
        self._until = 0.0
        self._next_s = FIRST_PAUSE_S

    def refused(self, now: float, retry_after_s: float | None = None) -> float:
        """A line was refused. Seconds of the pause that begins now; 0 in a pause: lines that were in flight together
        are refused once."""
        if now < self._until:
            return 0.0
        pause_s = retry_after_s or self._next_s
        self._next_s = min(2 * self._next_s, LONGEST_PAUSE_S)
        self._until = now + pause_s
        return pause_s

    def answered(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def pause_s(self, now: float) -> float:
        return max(0.0, self._until - now)


class ModelItems:
    """The open lines of a batch that ask for one model, or (the empty name) for none of the served ones, `besides`, in
    the file's order. No line is read to be passed over, and what a line asks is not read here. `places`: lines for this
    model that may be in flight, of all batches."""

    def __init__(
        self, store: Store, batch_id: str, name: str, places: FairSemaphore, besides: Collection[str] = ()
    ) -> None:
        self.name = name
        self.places = places
        self.backoff = Backoff()
        self.suspects = asyncio.Lock()
        """Held by a line beside which the engine has died: one runs at a time, so the one that kills it is found."""
        self._find = partial(open_lines, store, batch_id, count=_READ_AT_ONCE, model=name or None, besides=besides)
        self._next: deque[OpenLine] = deque()
        self._after = FIRST
        self._read_all = False
        self._reading = asyncio.Lock()

    async def take(self) -> int | None:
        """The number of the next line; None where there is none. Raises `StoreAwayError`."""
        async with self._reading:
            if not self._next and not self._read_all:
                self._next.extend(await self._find(self._after))
                self._read_all = len(self._next) < _READ_AT_ONCE
            if not self._next:
                return None
            self._after = self._next.popleft()
            return self._after.line


class BatchItems:
    """Runs the open lines of a batch. `places`: lines of all batches that may be in flight, by model; under the empty
    name, for models not served."""

    def __init__(self, serving: ResponsesContext, job: BatchJob, places: Mapping[str, FairSemaphore]) -> None:
        self._serving = serving
        self._store = serving.store
        self._job = job
        self._places = places
        self._answers: list[Answer] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._begun: set[asyncio.Task[Any]] = set()  # workers whose line has a place

    async def run(self) -> None:
        """Run lines until none is open, or the job is ended or preempted."""
        job = self._job
        job.wake.set()
        try:
            async with asyncio.TaskGroup() as group:
                for items in self._models():
                    for _ in range(int(items.places.places)):
                        worker = group.create_task(self._work(items))
                        self._workers.add(worker)
                        worker.add_done_callback(self._ended)
                while self._workers and job.end_reason is None:
                    await job.wake.wait()
                    job.wake.clear()
                    if job.preempted.is_set():
                        _cancel(self._workers - self._begun)
                    await self._write()
                _cancel(self._workers)
        finally:
            await self._write(last=True)

    def _models(self) -> list[ModelItems]:
        served, only = self._places.keys() - {""}, self._job.row.model
        names: Collection[str] = self._places if only is None else [only if only in served else ""]
        return [
            ModelItems(self._store, self._job.id, name, self._places[name], besides=() if name else served)
            for name in names
        ]

    def _ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._job.wake.set()

    async def _work(self, items: ModelItems) -> None:
        line = None
        while not self._stops():
            await asyncio.sleep(items.backoff.pause_s(SYSTEM_CLOCK.now()))
            try:
                line = line or await items.take()
                if line is None:
                    return
                answer = await self._attempt(items, line)
            except StoreAwayError as error:
                items.backoff.refused(SYSTEM_CLOCK.now())
                _log.warning("batch %s: its lines wait for the database: %s", self._job.id, error)
                continue
            if answer is not None:
                line = None
                self._answers.append(answer)
                self._job.progress_at = SYSTEM_CLOCK.now()
                self._job.wake.set()

    def _stops(self) -> bool:
        cancelled = _this_task().cancelling() > 0  # a line that is being settled outlives that
        return cancelled or self._job.preempted.is_set() or self._job.end_reason is not None

    async def _attempt(self, items: ModelItems, number: int) -> Answer | None:
        """Run a line in a place of its model's; None where it is to be tried again, or the batch is preempted."""
        job, worker = self._job, _this_task()
        alone = items.suspects if job.losses[number] else nullcontext()
        async with alone, items.places.place(job.organization_id):
            if items.backoff.pause_s(SYSTEM_CLOCK.now()):
                return None  # another line was refused while this one waited for the place
            self._begun.add(worker)
            try:
                # Read only now: lines may wait for long, and be large.
                line = await read_line(self._store, job.id, number)
                assert job.principal is not None
                record = make_record(job.principal, job.row, line, job.preempted.wait)
                job.requests[number] = record
                try:
                    result = await run_line(ENDPOINTS[job.row.endpoint], self._serving, record, line)
                finally:
                    del job.requests[number]
            finally:
                self._begun.discard(worker)
        if isinstance(result, Refused):
            return self._note_refusal(items, result)
        if result is not None and not result.failed:
            items.backoff.answered()
        return result

    def _note_refusal(self, items: ModelItems, refused: Refused) -> Answer | None:
        job, error = self._job, refused.error
        if error.code == "replica_lost":
            job.losses[refused.line.line] += 1
            if job.losses[refused.line.line] >= _MAX_LOSSES:
                return given_up_answer(job.row, refused)
        pause_s = items.backoff.refused(SYSTEM_CLOCK.now(), refused.retry_after_s)
        if pause_s:
            message = "batch %s waits %.2f s with its lines for %r: a line was refused: %s"
            _log.info(message, job.id, pause_s, items.name, error.message)
        self._serving.metrics.batch_lines.labels("retried").inc()
        return None

    async def _write(self, *, last: bool = False) -> None:
        """Write the answers that have come. They have been paid for: this is tried again while the database is away,
        except where it is the `last` time."""
        while self._answers:
            answers = list(self._answers)
            try:
                await answer_lines(self._store, self._job.holder, self._job.id, answers)
            except StoreAwayError as error:
                if last or self._job.end_reason is not None:
                    raise
                _log.warning("batch %s: answers wait for the database: %s", self._job.id, error)
                await asyncio.sleep(_WRITE_AGAIN_S)
                continue
            del self._answers[: len(answers)]
            for answer in answers:
                self._serving.metrics.batch_lines.labels("failed" if answer.failed else "completed").inc()


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
