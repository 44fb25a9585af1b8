"""A batch of several models: what one of them is kept waiting for holds up no line of the others."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Sequence

import pytest

from batch_bench import BUSY, make_bench, settled, until
from kvarn.batches import lane
from kvarn.batches.line import line_id
from kvarn.batches.pacing import PARK_S
from kvarn.serving.record import RequestRecord
from kvarn.store.engine import Store
from kvarn.store.repositories.batches.batches import BatchStatus
from kvarn.store.repositories.batches.lines import Line, add_lines, read_line
from kvarn.store.repositories.batches.runs import move_batch
from kvarn.wire.messages import EngineStats
from kvarn.wire.openai.errors import ApiError, unavailable


class Log:
    """Answers lines, and remembers those that it answered."""

    def __init__(self) -> None:
        self.models: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()

    async def answer(self, record: RequestRecord, model: str) -> object:
        self.models[model] += 1
        self.requests[record.request_id] += 1
        return {}


async def test_lines_for_an_idle_model_do_not_wait_behind_a_busy_ones(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make_bench(store, monkeypatch, ["busy"] * 200 + ["idle"] * 40, ["busy", "idle"])
    read = watch_reads(monkeypatch)
    log = Log()
    bench.answer, bench.stats["busy"] = log.answer, BUSY
    task = bench.run()
    await until(lambda: log.models["idle"] == 40)
    assert log.models == {"idle": 40} and not task.done()
    assert read == {"idle": 40}, "of what waits, nothing but its number is in memory"
    bench.stats["busy"] = EngineStats()
    assert await asyncio.wait_for(task, 10) == 0
    assert log.models == {"idle": 40, "busy": 200} and set(log.requests.values()) == {1}


async def test_lanes_that_stand_still_hold_next_to_nothing_however_large_their_lines(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [f"m{number}" for number in range(10)]
    bench = await make_bench(store, monkeypatch, [], models)
    body = json.dumps({"model": "any", "text": "x" * 100_000}).encode()
    for place, model in enumerate(models):
        numbers = range(1 + 16 * place, 17 + 16 * place)
        await add_lines(store, bench.hold.batch.id, [Line(number, f"c{number}", body, model) for number in numbers])
    log = Log()
    bench.answer = log.answer
    bench.stats.update(dict.fromkeys(models, BUSY))
    tracemalloc.start()
    task = bench.run()
    await settled()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2_000_000, "of 16 MB"
    bench.stats.clear()
    assert await asyncio.wait_for(task, 30) == 0 and log.models == {"any": 160}


def watch_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What lines ask, read from the database, by the model that they ask for."""
    read: Counter[str] = Counter()

    async def watched(*args: object) -> Line:
        line = await read_line(*args)  # type: ignore[arg-type]
        read[line.model] += 1
        return line

    monkeypatch.setattr(lane, "read_line", watched)
    return read


@pytest.mark.parametrize(
    "error",
    [
        unavailable("full", "queue_full", 30.0),
        unavailable("not there", "model_not_ready", 30.0),
        ApiError(429, "the model's limit", code="rate_limit_exceeded", headers={"retry-after": "30"}),
    ],
)
async def test_a_model_that_refuses_holds_up_its_own_lines_only(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: ApiError
) -> None:
    bench = await make_bench(store, monkeypatch, ["shed", "well"] * 20, ["shed", "well"])
    bench.gates["shed"].window.size = 1
    log, tried = Log(), Counter[str]()

    async def answer(record: RequestRecord, model: str) -> object:
        tried[model] += 1
        if model == "shed":
            raise error
        return await log.answer(record, model)

    bench.answer = answer
    task = bench.run()
    await asyncio.wait_for(task, 10)
    assert tried == {"shed": 1, "well": 20} and await bench.open() == 20
    assert task.result() == 30.0, "with nothing left that may go on, it rests"
    bench.answer = log.answer
    bench.now += 30
    assert await asyncio.wait_for(bench.run(), 10) == 0
    assert log.models == {"well": 20, "shed": 20}


async def test_a_batch_keeps_its_place_while_one_of_its_models_gets_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make_bench(store, monkeypatch, ["busy"] * 5 + ["slow"] * 2, ["busy", "slow"])
    bench.gates["slow"].window.most = bench.gates["slow"].window.size = 1
    ends = [asyncio.Event(), asyncio.Event()]
    log = Log()

    async def answer(record: RequestRecord, model: str) -> object:
        await ends[log.models["slow"]].wait()
        return await log.answer(record, model)

    bench.answer, bench.stats["busy"] = answer, BUSY
    task = bench.run()
    for end in ends:
        await settled()
        bench.now += 2 * PARK_S
        await settled()
        assert not task.done()
        end.set()
    assert await asyncio.wait_for(task, 5) == PARK_S
    assert log.models == {"slow": 2} and await bench.open() == 5


async def test_all_lanes_let_go_when_their_batch_gives_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await make_bench(store, monkeypatch, ["a", "b", "nobody"] * 5, ["a", "b"])
    bench.stats.update(dict.fromkeys(bench.gates, BUSY))
    task = bench.run()
    await settled()
    bench.hold.gives_way.set()
    assert await asyncio.wait_for(task, 5) == PARK_S and await bench.open() == 15
    bench.stats.clear()
    for gate in bench.gates.values():
        async with asyncio.timeout(5), gate.place("blue"):
            pass  # nobody stands in the way


async def test_models_that_are_not_served_share_a_lane(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await make_bench(store, monkeypatch, [f"nobody-{i}" for i in range(50)] + ["", "a"], ["a", "b"])
    log = Log()
    bench.answer, bench.stats["b"] = log.answer, BUSY
    assert await asyncio.wait_for(bench.run(), 10) == 0
    assert len(log.models) == 52 and set(log.models.values()) == {1} and await bench.open() == 0


@pytest.mark.parametrize(("served", "model"), [(["a", "b"], "a"), ([], "a")])
async def test_a_batch_of_one_model_looks_for_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch, served: Sequence[str], model: str
) -> None:
    bench = await make_bench(store, monkeypatch, [model] * 3, served)
    origin = {BatchStatus.VALIDATING}
    bench.hold.batch = await move_batch(
        store, "a", bench.hold.batch.id, origin, BatchStatus.IN_PROGRESS, total=3, model=model
    )
    log = Log()
    bench.answer = log.answer
    bench.pacings["b"].hold_up(bench.now, 60.0)
    assert await asyncio.wait_for(bench.run(), 10) == 0 and log.models == {model: 3}


@pytest.mark.parametrize("seed", range(3))
async def test_each_line_is_answered_once_whatever_happens(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Models come and go, refuse, and the batch changes hands."""
    dice = random.Random(seed)
    models = [dice.choice(["a", "b", "c", "nobody", ""]) for _ in range(120)]
    bench = await make_bench(store, monkeypatch, models, ["a", "b", "c"])
    log = Log()

    async def answer(record: RequestRecord, model: str) -> object:
        await asyncio.sleep(dice.choice([0, 0, 0.002]))
        if dice.random() < 0.2:
            raise unavailable("full", "queue_full", dice.choice([0.5, 5.0]))
        return await log.answer(record, model)

    bench.answer = answer
    while await bench.open():
        task = bench.run()
        for _ in range(dice.randrange(1, 8)):
            bench.stats[dice.choice("abc")] = dice.choice([BUSY, EngineStats()])
            bench.now += dice.choice([0.1, 1.0, PARK_S])
            await asyncio.sleep(0.01)
        dice.choice([bench.hold.stopped, bench.hold.gives_way]).set()
        await asyncio.wait_for(task, 5)
        bench.hold.stopped.clear()
        bench.hold.gives_way.clear()
    assert set(log.requests) == {line_id(bench.hold.batch.id, number) for number in range(1, 121)}
    batch = bench.hold.batch
    now = await move_batch(store, "a", batch.id, {BatchStatus.VALIDATING}, BatchStatus.IN_PROGRESS)
    assert (now.completed, now.failed) == (120, 0)
