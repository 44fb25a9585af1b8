"""Sending of requests: a closed loop keeps a number of requests in flight, an open loop keeps a timetable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from kvarn.bench.answer import ask
from kvarn.bench.conversations import Clock, ConversationSender, Encode, Send
from kvarn.bench.http import HttpClient
from kvarn.bench.records import Record
from kvarn.bench.target import Target
from kvarn.clock import SYSTEM_CLOCK
from kvarn.traffic.conversation import Conversation, turns_of
from kvarn.traffic.workload import BenchRequest


class Job(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    requests: Sequence[BenchRequest] = ()
    conversations: Sequence[Conversation] = ()
    """Sent in place of `requests`, where there are any."""
    concurrency: int | None = None
    """Requests, or conversations, kept in flight (closed loop); None sends each at its time (open loop)."""
    warm_up: Sequence[BenchRequest] = ()
    """Sent one after another before the clock starts; not in the figures."""


class RunProgress(msgspec.Struct):
    total: int
    sent: int = 0
    done: int = 0
    failed: int = 0
    output_tokens: int = 0
    """Output tokens of finished requests, from `usage`."""

    @property
    def running(self) -> int:
        return self.sent - self.done


class Outcome(msgspec.Struct, kw_only=True):
    """A run that ended, by itself or by interruption."""

    records: list[Record]
    """Records of finished requests, in the order they ended."""
    duration_s: float
    """From the start of the run to the end of its last finished request."""
    unfinished: int
    """In flight when the run was interrupted; their tokens are not counted."""
    interrupted: bool
    generator_cpu_s: float
    """Processor time this process spent in the run: what the load generator itself cost."""
    started_at: float
    """Unix time of the start."""


class Run:
    """One run of a job: `start` it, watch its `progress`, `outcome` says what is known so far."""

    def __init__(self, job: Job) -> None:
        """Raises ValueError for a target URL that is none."""
        turns = sum(1 for each in job.conversations for _ in turns_of(each))
        self.progress = RunProgress(total=turns or len(job.requests))
        self._job = job
        self._client = HttpClient(job.target.root, job.target.api_key)
        self._records: list[Record] = []
        self._start = SYSTEM_CLOCK.now()
        self._started_at = SYSTEM_CLOCK.time()
        self._cpu_start = time.process_time()

    async def warm_up(self) -> list[Record]:
        """Send the warm-up requests one after another; their records are only for looking at their errors."""
        target = self._job.target
        return [
            await ask(self._client, target, request, target.body(request), SYSTEM_CLOCK.now(), 0.0)
            for request in self._job.warm_up
        ]

    async def measure(self) -> None:
        """Run to the end. Cancelling stops the sending, gives up what is in flight and leaves the records."""
        self._start, self._started_at = SYSTEM_CLOCK.now(), SYSTEM_CLOCK.time()
        self._cpu_start = time.process_time()
        try:
            if self._job.conversations:
                await self._converse(ConversationSender(self._job.target.body, self._send, self._now))
            elif self._job.concurrency is None:
                await open_loop(self._job.requests, self._job.target.body, self._send, self._now)
            else:
                await closed_loop(
                    self._job.requests, self._job.concurrency, self._job.target.body, self._send, self._now
                )
        finally:
            self._client.close()

    async def _converse(self, sender: ConversationSender) -> None:
        if self._job.concurrency is None:
            await sender.open_loop(self._job.conversations)
        else:
            await sender.closed_loop(self._job.conversations, self._job.concurrency)

    def outcome(self, *, interrupted: bool = False) -> Outcome:
        ends = [record.end_s for record in self._records]
        return Outcome(
            records=self._records,
            duration_s=max(ends, default=0.0),
            unfinished=self.progress.running,
            interrupted=interrupted,
            generator_cpu_s=time.process_time() - self._cpu_start,
            started_at=self._started_at,
        )

    def _now(self) -> float:
        return SYSTEM_CLOCK.now() - self._start

    async def _send(self, request: BenchRequest, body: bytes, due: float) -> None:
        self.progress.sent += 1
        record = await ask(self._client, self._job.target, request, body, self._start, due)
        self._records.append(record)
        self.progress.done += 1
        self.progress.failed += record.error is not None
        self.progress.output_tokens += record.output_tokens


async def closed_loop(
    requests: Sequence[BenchRequest], concurrency: int, encode: Encode, send: Send, now: Clock
) -> None:
    """`concurrency` users, each sending its next request when its last is answered. A request is due when its user
    is free and its body is made, so that making it is no latency of the server's."""
    queue = iter(requests)

    async def user() -> None:
        for request in queue:
            body = encode(request)
            await send(request, body, now())

    async with asyncio.TaskGroup() as users:
        for _ in range(min(concurrency, len(requests))):
            users.create_task(user())


async def open_loop(requests: Sequence[BenchRequest], encode: Encode, send: Send, now: Clock) -> None:
    """Each request at its `arrival_s`, never waiting for an answer; its latency counts from there, so that a server
    that stalls is charged for all who came meanwhile (no coordinated omission)."""
    async with asyncio.TaskGroup() as in_flight:
        for request in requests:
            due = request.arrival_s or 0.0
            body = encode(request)
            late = now() >= due
            while (left := due - now()) > 0:  # noqa: ASYNC110  timers of whole milliseconds may fire early
                await asyncio.sleep(left)
            in_flight.create_task(send(request, body, due))
            if late:
                await asyncio.sleep(0)  # behind the timetable: still let answers in
