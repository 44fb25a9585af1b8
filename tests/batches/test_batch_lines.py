"""Lines on their way through a gate: what shrinks it, and what becomes of them when their batch is to end."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from batch_bench import BUSY, Bench, make_bench, settled, until
from kvarn.batches.line import line_id
from kvarn.batches.pacing import PARK_S
from kvarn.serving.record import RequestRecord
from kvarn.store.engine import Store
from kvarn.wire.messages import EngineStats
from kvarn.wire.openai.errors import ApiError, unavailable

LINES = 5


@pytest.fixture
async def bench(store: Store, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A batch of five lines for models that are not served."""
    return await make_bench(store, monkeypatch, [""] * LINES)


async def a_good_answer(record: RequestRecord, model: str) -> object:
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
    refused = 0

    async def refuse(record: RequestRecord, model: str) -> object:
        nonlocal refused
        refused += 1
        raise error

    bench.answer = refuse
    before = bench.window.size
    task = bench.run()
    await until(lambda: refused > 0)
    await settled()
    assert bench.window.size == (before / 2 if shrinks else before)
    bench.hold.stopped.set()
    assert await task == 0 and await bench.open() == LINES


async def test_only_lines_that_went_well_widen_the_window(bench: Bench) -> None:
    async def wrong(record: RequestRecord, model: str) -> object:
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
    bench.stats[""] = BUSY
    task = bench.run()
    await settled()
    assert not task.done()
    bench.hold.gives_way.set()
    assert await asyncio.wait_for(task, 5) == PARK_S
    assert await bench.open() == LINES
    bench.stats[""] = EngineStats()
    async with asyncio.timeout(5), bench.gate.place("blue"):
        pass  # nobody stands in the way


async def test_lines_that_wait_to_be_admitted_let_go_too_and_those_in_the_engine_end(bench: Bench) -> None:
    begun: list[str] = []
    end = asyncio.Event()

    async def answer(record: RequestRecord, model: str) -> object:
        begun.append(record.request_id)
        if len(begun) > 1:  # only the first is admitted
            assert record.client_left is not None
            await record.client_left()
            raise ClientDisconnect
        await end.wait()
        return {}

    bench.answer = answer
    task = bench.run()
    await until(lambda: len(begun) == 4)
    assert bench.window.size == 4
    bench.hold.gives_way.set()
    await settled()
    assert not task.done() and bench.window.in_flight == 1
    end.set()
    assert await asyncio.wait_for(task, 5) == PARK_S
    assert await bench.open() == LINES - 1 and len(begun) == 4


async def test_a_batch_waits_no_longer_than_is_worth_a_place_where_its_model_has_no_room(bench: Bench) -> None:
    bench.stats[""] = BUSY
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

    async def refuse(record: RequestRecord, model: str) -> object:
        tried.append(record.request_id)
        raise unavailable("full", "queue_full", 3.0)

    bench.answer = refuse
    bench.window.most, bench.window.size = 1, 1
    task = bench.run()
    await until(lambda: len(tried) == 1)
    await settled()
    bench.answer = a_good_answer
    bench.now += 3
    assert await asyncio.wait_for(task, 5) == 0 and await bench.open() == 0


def break_off(monkeypatch: pytest.MonkeyPatch, bench: Bench, *lines: int) -> None:
    """Lines whose run ends in an error, once all others that came in with them are over."""
    close, broken = RequestRecord.close, {line_id(bench.hold.batch.id, line) for line in lines}
    over = 0

    async def break_off(record: RequestRecord) -> None:
        nonlocal over
        await close(record)
        over += 1
        if record.request_id in broken:
            while over < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            raise RuntimeError(f"nobody foresaw this of {record.request_id}")

    monkeypatch.setattr(RequestRecord, "close", break_off)


async def test_answers_are_kept_where_the_run_of_another_line_breaks_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(monkeypatch, bench, 1)
    bench.answer = a_good_answer
    with pytest.raises(RuntimeError, match="foresaw"):
        await asyncio.wait_for(bench.run(), 5)
    assert await bench.open() in (1, 2), "three answers had come before it"


async def test_every_error_that_nobody_foresaw_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_off(monkeypatch, bench, 1, 2)
    bench.answer = a_good_answer
    with pytest.raises(RuntimeError) as raised:
        await asyncio.wait_for(bench.run(), 5)
    told = str(raised.value) + caplog.text
    assert all(f"foresaw this of {line_id(bench.hold.batch.id, line)}" in told for line in (1, 2))


async def test_an_answer_that_is_whole_is_kept_where_the_stop_comes_while_it_is_settled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    settling = asyncio.Event()

    async def slow(record: RequestRecord) -> None:
        settling.set()
        await asyncio.sleep(0.1)

    monkeypatch.setattr(RequestRecord, "close", slow)
    bench.answer = a_good_answer
    bench.window.most = bench.window.size = 1
    task = bench.run()
    await asyncio.wait_for(settling.wait(), 5)
    bench.hold.stopped.set()
    assert await asyncio.wait_for(task, 5) == 0 and await bench.open() == LINES - 1


async def test_refused_lines_come_again_before_those_behind_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await make_bench(store, monkeypatch, ["a"] * 12, ["a"])
    bench.gates["a"].window.most = bench.gates["a"].window.size = 2
    numbers = {line_id(bench.hold.batch.id, number): number for number in range(1, 13)}
    begun: list[int] = []

    async def refuse(record: RequestRecord, model: str) -> object:
        begun.append(numbers[record.request_id])
        bench.stats["a"] = BUSY  # so that others stand at the gate meanwhile
        raise unavailable("full", "queue_full", 2.0)

    bench.answer = refuse
    task = bench.run()
    for tries in range(1, 5):
        await until(lambda tries=tries: len(begun) >= tries)  # type: ignore[misc]
        await settled()
        bench.now += 2.1
        bench.stats["a"] = EngineStats()
        if task.done():
            task = bench.run()
    bench.hold.stopped.set()
    await asyncio.wait_for(task, 5)
    assert max(begun) <= 2
