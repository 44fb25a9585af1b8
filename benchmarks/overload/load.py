"""Send a timetable to a server, and find out how much it can take."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import msgspec

from benchmarks.overload.server import MODEL
from benchmarks.overload.traffic import OUTPUT_COST, TENANTS, Sending, Tenant, mixture
from kvarn.bench.answer import ask
from kvarn.bench.driver import closed_loop, open_loop
from kvarn.bench.http import HttpClient
from kvarn.bench.records import Record
from kvarn.bench.summary import Slo
from kvarn.bench.target import Target as Server
from kvarn.traffic.workload import BenchRequest, Vocabulary

VOCABULARY = Vocabulary(300, 4000)
GRACE_S = 10.0
"""For those that were sent last. What has not ended by then is given up, and has missed its targets."""
PROBES = (16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 192)
"""Users of the closed loops among which the best is sought."""


class Answer(msgspec.Struct, frozen=True):
    """What came of one request."""

    tenant: str
    due_s: float
    sent_s: float
    end_s: float | None
    """None where it was given up."""
    cost: float
    """Weighted tokens that it was served."""
    good: bool
    """It met both targets."""
    error: str | None
    ttft_s: float | None
    tpot_s: float | None


class Senders:
    """One client for each tenant, on the keys that they have."""

    def __init__(self, url: str, slo: Slo, seed: int) -> None:
        self.answers: list[Answer] = []
        self._slo = slo
        self._start = time.perf_counter()
        self._servers = {
            each.name: Server(url=url, model=MODEL, api_key=each.name, vocabulary=VOCABULARY, seed=seed)
            for each in TENANTS
        }
        self._clients = {name: HttpClient(server.root, server.api_key) for name, server in self._servers.items()}
        self._tenants: dict[int, str] = {}

    async def open(self, sendings: Sequence[Sending], seconds: float) -> None:
        """Keep a timetable of so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds + GRACE_S):
                await open_loop(self._requests(sendings), self._encode, self._send, self._now)

    async def closed(self, sendings: Sequence[Sending], users: int, seconds: float) -> None:
        """Keep so many requests in flight."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await closed_loop(self._requests(sendings), users, self._encode, self._send, self._now)

    def close(self) -> None:
        """Drop all connections: the server forgets what is under way."""
        for client in self._clients.values():
            client.close()

    def _requests(self, sendings: Sequence[Sending]) -> list[BenchRequest]:
        self._tenants = {each.request.index: each.tenant.name for each in sendings}
        self._start = time.perf_counter()
        return [each.request for each in sendings]

    def _encode(self, request: BenchRequest) -> bytes:
        return self._servers[self._tenants[request.index]].body(request)

    async def _send(self, request: BenchRequest, body: bytes, due: float) -> None:
        name = self._tenants[request.index]
        try:
            record = await ask(self._clients[name], self._servers[name], request, body, self._start, due)
        except asyncio.CancelledError:
            self.answers.append(Answer(name, due, due, None, 0.0, False, "given_up", None, None))
            raise
        self.answers.append(_answer(name, record, self._slo))

    def _now(self) -> float:
        return time.perf_counter() - self._start


def _answer(tenant: str, record: Record, slo: Slo) -> Answer:
    due_s, sent_s = record.scheduled_s, record.sent_s
    if record.error is not None:
        return Answer(tenant, due_s, sent_s, record.end_s, 0.0, False, str(record.error), None, None)
    cost = record.prompt_tokens + OUTPUT_COST * record.output_tokens
    good = slo.met_by(record)
    return Answer(tenant, due_s, sent_s, record.end_s, cost, good, None, record.ttft_s, record.tpot_s)


async def play(url: str, sendings: Sequence[Sending], seconds: float, slo: Slo, seed: int) -> list[Answer]:
    """Offer a timetable; what came of each request."""
    senders = Senders(url, slo, seed)
    try:
        await senders.open(sendings, seconds)
    finally:
        senders.close()
    return senders.answers


async def capacity(
    url: str, slo: Slo, tenants: Sequence[Tenant], probe_s: float, seed: int
) -> tuple[float, dict[int, float]]:
    """The most weighted tokens a second, within both targets, that any closed loop got; and what each got.

    Stops once twice in a row less than three quarters of the best were good.
    """
    found: dict[int, float] = {}
    poor = 0
    for place, users in enumerate(PROBES):
        senders = Senders(url, slo, 1000 * seed + place)
        try:
            await senders.closed(mixture(tenants, 4000, 1000 * seed + place), users, probe_s)
        finally:
            senders.close()
        began = probe_s / 4
        window = [each for each in senders.answers if each.end_s is not None and each.end_s >= began]
        found[users] = sum(each.cost for each in window if each.good) / (probe_s - began)
        poor = poor + 1 if found[users] < 0.75 * max(found.values()) else 0
        await asyncio.sleep(0.5)
        if poor == 2:
            break
    return max(found.values()), found
