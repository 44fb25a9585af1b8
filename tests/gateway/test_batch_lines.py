"""Lines on their way through a gate: what shrinks it, and what becomes of them when their batch is to end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from batch_jobs import CHAT
from kvarn.config.platform import BatchesConfig
from kvarn.gateway.batches.capacity import LineGate, LineWindow
from kvarn.gateway.batches.hold import Hold
from kvarn.gateway.batches.lines import Lines
from kvarn.gateway.batches.pacing import PARK_S, Pacing
from kvarn.gateway.errors import unavailable
from kvarn.gateway.record import RequestRecord
from kvarn.store.engine import Store
from kvarn.store.repositories.batch_lines import Line, add_lines, open_lines
from kvarn.store.repositories.batch_runs import claim_batches
from kvarn.store.repositories.batches import create_batch
from kvarn.store.repositories.tenants import create_organization
from kvarn.wire.messages import EngineStats
from kvarn.wire.openai.errors import ApiError

BUSY = EngineStats(waiting=1, waiting_by_priority={0: 1})
LINES = 5


class Metrics:
    """Counts nothing."""

    class _Counter:
        def inc(self) -> None: ...

    @property
    def batch_lines(self) -> Any:
        return self

    def labels(self, _: str) -> Any:
        return self._Counter()


@dataclass
class Bench:
    """A batch of five lines, held, before the gate of an engine; its operation and the time are the test's."""

    hold: Hold
    now: float = 1000.0
    stats: EngineStats = field(default_factory=EngineStats)
    answer: Callable[[RequestRecord], Awaitable[object]] | None = None
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.window = LineWindow(64, 0.1)
        self.gate = LineGate(self.window, lambda: self.stats, lambda: self.now)
        self.pacing = Pacing()

    def run(self) -> asyncio.Task[float]:
        gateway: Any = self
        config = BatchesConfig(max_in_flight=8)
        lines = Lines(gateway, self.hold, {"": self.gate}, config, self.pacing, lambda: self.now)
        return asyncio.create_task(lines.run())

    async def operate(self, gateway: object, record: RequestRecord, body: bytes) -> object:
        """The operation of all lines."""
        assert self.answer is not None
        return await self.answer(record)

    async def open(self) -> int:
        return len(await open_lines(self.hold.store, self.hold.batch.id, 0, 100))


@pytest.fixture
async def bench(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    who = await create_organization(store, "red")
    nothing: dict[str, Any] = {"metadata": None, "output_expires_after_s": None}
    await create_batch(store, who, endpoint=CHAT, input_file_id="file-x", window_s=100, **nothing)
    (batch,) = await claim_batches(store, "a", 10, 1)
    await add_lines(store, batch.id, [Line(i, f"c{i}", json.dumps({"n": i}).encode()) for i in range(1, LINES + 1)])
    hold = Hold(store, "a", batch, BatchesConfig())
    hold.principal = who
    bench = Bench(hold)
    monkeypatch.setattr("kvarn.gateway.batches.line.ENDPOINTS", {CHAT: bench.operate})
    monkeypatch.setattr("kvarn.gateway.batches.lines._LOOK_AGAIN_S", 0.01)
    yield bench


async def settled() -> None:
    """Give the loop the time for a few looks."""
    await asyncio.sleep(0.15)


async def a_good_answer(record: RequestRecord) -> object:
    return {}


@pytest.mark.parametrize(
    ("error", "shrinks"),
    [
        (unavailable("full", "queue_full"), True),
        (unavailable("waited", "queue_timeout"), True),
        (unavailable("died", "replica_lost"), True),
        (unavailable("starts", "model_not_ready"), True),
        (ApiError(429, "spent", code="insufficient_quota"), False),
        (ApiError(429, "too fast", code="rate_limit_exceeded", headers={"retry-after": "3"}), False),
        (ApiError(429, "your share", code="over_share", headers={"retry-after": "3"}), False),
        (ApiError(409, "in use", code="conversation_locked"), False),
        (unavailable("away", "database_away"), False),
    ],
)
async def test_only_what_the_engine_refuses_shrinks_the_window_that_all_share(
    bench: Bench, error: ApiError, shrinks: bool
) -> None:
    async def refuse(record: RequestRecord) -> object:
        raise error

    bench.answer = refuse
    before = bench.window.size
    task = bench.run()
    await settled()
    assert bench.window.size == (before / 2 if shrinks else before)
    bench.hold.stopped.set()
    assert await task == 0 and await bench.open() == LINES


async def test_only_lines_that_went_well_widen_the_window(bench: Bench) -> None:
    async def wrong(record: RequestRecord) -> object:
        raise ApiError(400, "no")

    bench.answer = wrong
    before = bench.window.size
    assert await bench.run() == 0 and await bench.open() == 0
    assert bench.window.size == before


async def test_answered_lines_widen_the_window(bench: Bench) -> None:
    bench.answer = a_good_answer
    before = bench.window.size
    assert await bench.run() == 0 and await bench.open() == 0
    assert bench.window.size == before + LINES


async def test_lines_at_a_gate_let_go_when_their_batch_gives_way_and_stay_open(bench: Bench) -> None:
    bench.stats = BUSY
    task = bench.run()
    await settled()
    assert not task.done()
    bench.hold.gives_way.set()
    assert await asyncio.wait_for(task, 5) == PARK_S
    assert await bench.open() == LINES
    bench.stats = EngineStats()
    async with asyncio.timeout(5), bench.gate.place("blue"):
        pass  # nobody stands in the way


async def test_lines_that_wait_to_be_admitted_let_go_too_and_those_in_the_engine_end(bench: Bench) -> None:
    begun: list[str] = []
    end = asyncio.Event()

    async def answer(record: RequestRecord) -> object:
        begun.append(record.request_id)
        if len(begun) > 1:  # only the first is admitted
            assert record.client_left is not None
            await record.client_left()
            raise ClientDisconnect
        await end.wait()
        return {}

    bench.answer = answer
    task = bench.run()
    await settled()
    assert len(begun) == bench.window.size == 4
    bench.hold.gives_way.set()
    await settled()
    assert not task.done() and bench.window.in_flight == 1
    end.set()
    assert await asyncio.wait_for(task, 5) == PARK_S
    assert await bench.open() == LINES - 1 and len(begun) == 4


async def test_a_batch_waits_no_longer_than_is_worth_a_place_where_its_model_has_no_room(bench: Bench) -> None:
    bench.stats = BUSY
    task = bench.run()
    await settled()
    bench.now += PARK_S - 0.1
    await settled()
    assert not task.done()
    bench.now += 0.1
    assert await asyncio.wait_for(task, 5) == PARK_S
    assert await bench.open() == LINES


async def test_a_batch_whose_turn_will_come_keeps_its_place(bench: Bench) -> None:
    bench.answer = a_good_answer
    bench.window.most, bench.window.size = 1, 1
    async with bench.gate.place("blue"):
        task = bench.run()
        await settled()
        bench.now += 10 * PARK_S
        await settled()
        assert not task.done()
    assert await asyncio.wait_for(task, 5) == 0 and await bench.open() == 0


async def test_a_refused_batch_sends_no_line_to_the_gate_until_its_pause_is_over(bench: Bench) -> None:
    tried: list[str] = []

    async def refuse(record: RequestRecord) -> object:
        tried.append(record.request_id)
        raise unavailable("full", "queue_full", 3.0)

    bench.answer = refuse
    bench.window.most, bench.window.size = 1, 1
    task = bench.run()
    await settled()
    assert len(tried) == 1
    bench.answer = a_good_answer
    bench.now += 3
    assert await asyncio.wait_for(task, 5) == 0 and await bench.open() == 0
