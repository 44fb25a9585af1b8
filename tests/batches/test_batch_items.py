"""The lines of a batch in progress: each answered once, whatever refuses them, and none holds up another model's."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from starlette.requests import ClientDisconnect

from batch_bench import Bench, make_bench, until
from kvarn.answers.record import RequestRecord
from kvarn.batches import items
from kvarn.batches.items import Backoff
from kvarn.batches.job import EndReason
from kvarn.batches.line import line_id
from kvarn.store.engine import Store
from kvarn.store.repositories.batches.batches import BatchStatus, move_batch
from kvarn.store.repositories.batches.lines import Line, read_line
from kvarn.wire.openai.errors import ApiError, unavailable
from profiles import effort

LINES = 5


class Log:
    """Answers lines, and remembers those that it answered."""

    def __init__(self) -> None:
        self.models: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()

    async def answer(self, record: RequestRecord, model: str) -> object:
        self.models[model] += 1
        self.requests[record.request_id] += 1
        return {}


class Busy(Log):
    """The same, but lines for some models wait to be admitted until `free` is set."""

    def __init__(self, *models: str) -> None:
        super().__init__()
        self.busy = models
        self.free = asyncio.Event()

    async def answer(self, record: RequestRecord, model: str) -> object:
        if model in self.busy and not self.free.is_set():
            assert record.reply.client_left is not None
            left = asyncio.ensure_future(record.reply.client_left())
            free = asyncio.ensure_future(self.free.wait())
            await asyncio.wait({left, free}, return_when=asyncio.FIRST_COMPLETED)
            free.cancel()
            left.cancel()
            if not self.free.is_set():
                raise ClientDisconnect
        return await super().answer(record, model)


@pytest.fixture
async def bench(store: Store, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A batch of five lines for models that are not served."""
    return await make_bench(store, monkeypatch, [""] * LINES)


async def a_good_answer(record: RequestRecord, model: str) -> object:
    return {}


def watch_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What lines ask, read from the database, by the model that they ask for."""
    read: Counter[str] = Counter()

    async def watched(*args: object) -> Line:
        line = await read_line(*args)
        read[line.model] += 1
        return line

    monkeypatch.setattr(items, "read_line", watched)
    return read


async def test_lines_for_an_idle_model_do_not_wait_behind_a_busy_ones(store, monkeypatch):
    bench = await make_bench(store, monkeypatch, ["busy"] * 200 + ["idle"] * 40, ["busy", "idle"])
    read, log = watch_reads(monkeypatch), Busy("busy")
    bench.answer = log.answer
    task = bench.run()
    await until(lambda: log.models["idle"] == 40)
    assert log.models == {"idle": 40} and not task.done()
    assert read == {"idle": 40, "busy": bench.max_in_flight}, "what has no place is in memory as a number"
    log.free.set()
    await asyncio.wait_for(task, 20)
    assert log.models == {"idle": 40, "busy": 200} and set(log.requests.values()) == {1}


@pytest.mark.parametrize(
    "error",
    [
        unavailable("full", "queue_full", 30.0),
        unavailable("not there", "model_not_ready", 30.0),
        ApiError(429, "the model's limit", code="rate_limit_exceeded", headers={"retry-after": "30"}),
    ],
)
async def test_a_model_that_refuses_holds_up_its_own_lines_only(store, monkeypatch, error):
    bench = await make_bench(store, monkeypatch, ["shed", "well"] * 20, ["shed", "well"])
    log, tried = Log(), Counter[str]()

    async def answer(record: RequestRecord, model: str) -> object:
        tried[model] += 1
        if model == "shed":
            raise error
        return await log.answer(record, model)

    bench.answer = answer
    task = bench.run()
    await until(lambda: log.models["well"] == 20)
    assert not task.done()
    bench.job.preempt()
    await asyncio.wait_for(task, 30)
    assert tried["shed"] <= bench.max_in_flight, "those in flight together are refused once"
    assert await bench.open() == 20
    bench.resume()
    bench.answer = log.answer
    await asyncio.wait_for(bench.run(), 60)
    assert log.models == {"well": 20, "shed": 20}


async def test_models_that_are_not_served_are_asked_for_one_after_the_other(store, monkeypatch):
    bench = await make_bench(store, monkeypatch, [f"nobody-{i}" for i in range(50)] + ["", "a"], ["a", "b"])
    log = Log()
    bench.answer = log.answer
    await asyncio.wait_for(bench.run(), 60)
    assert len(log.models) == 52 and set(log.models.values()) == {1} and await bench.open() == 0


@pytest.mark.parametrize(("served", "model"), [(["a", "b"], "a"), ([], "a")])
async def test_a_batch_of_one_model_looks_for_no_other(store, monkeypatch, served, model):
    bench = await make_bench(store, monkeypatch, [model] * 3, served)
    origin = {BatchStatus.VALIDATING}
    bench.job.row = await move_batch(store, "a", bench.job.id, origin, BatchStatus.IN_PROGRESS, total=3, model=model)
    log, asked = Log(), []

    async def open_lines(*args: object, **fields: object) -> list[object]:
        asked.append(fields["model"])
        return await found(*args, **fields)

    found = items.open_lines
    monkeypatch.setattr(items, "open_lines", open_lines)
    bench.answer = log.answer
    await asyncio.wait_for(bench.run(), 60)
    assert log.models == {model: 3} and set(asked) == {model if served else None}


@pytest.mark.parametrize("seed", range(effort(1, 3)))
async def test_each_line_is_answered_once_whatever_happens(store, monkeypatch, seed):
    """Models refuse, and the batch changes hands."""
    dice, lines = random.Random(seed), effort(60, 120)
    models = [dice.choice(["a", "b", "c", "nobody", ""]) for _ in range(lines)]
    bench = await make_bench(store, monkeypatch, models, ["a", "b", "c"])
    log = Log()

    async def answer(record: RequestRecord, model: str) -> object:
        await asyncio.sleep(dice.choice([0, 0, 0.002]))
        if dice.random() < 0.2:
            raise unavailable("full", "queue_full", dice.choice([0.01, 0.03]))
        return await log.answer(record, model)

    bench.answer = answer
    while await bench.open():
        task = bench.run()
        await asyncio.sleep(dice.choice([0.02, 0.05, 0.1]))
        dice.choice([bench.job.preempt, lambda: bench.job.end(EndReason.EXPIRED)])()
        await asyncio.wait_for(task, 30)
        bench.resume()
    assert set(log.requests) == {line_id(bench.job.id, number) for number in range(1, lines + 1)}
    now = await move_batch(store, "a", bench.job.id, {BatchStatus.VALIDATING}, BatchStatus.IN_PROGRESS)
    assert (now.completed, now.failed) == (lines, 0)
    assert all(places.used == 0 for places in bench.places.values())


async def test_lines_that_wait_to_be_admitted_are_left_open_by_a_preempted_batch_and_those_in_the_engine_end(bench):
    begun: list[str] = []
    end = asyncio.Event()

    async def answer(record: RequestRecord, model: str) -> object:
        begun.append(record.request_id)
        if len(begun) > 1:  # only the first is admitted
            assert record.reply.client_left is not None
            await record.reply.client_left()
            raise ClientDisconnect
        await end.wait()
        return {}

    bench.answer = answer
    task = bench.run()
    await until(lambda: len(begun) == 4)
    bench.job.preempt()
    await until(lambda: bench.places[""].used == 1)
    assert not task.done()
    end.set()
    await asyncio.wait_for(task, 30)
    assert await bench.open() == LINES - 1 and len(begun) == 4


async def test_lines_without_a_place_are_left_open_by_a_preempted_batch(bench):
    for _ in range(bench.max_in_flight):
        await bench.places[""].acquire("blue")
    task = bench.run()
    await until(lambda: bool(bench.places[""]._waiting))
    bench.job.preempt()
    await asyncio.wait_for(task, 30)
    assert await bench.open() == LINES
    bench.places[""].release("blue", bench.max_in_flight)
    async with asyncio.timeout(30), bench.places[""].place("blue"):
        pass  # nobody stands in the way


async def test_a_line_of_another_organization_takes_its_turn(bench):
    bench.places[""] = type(bench.places[""])(1)
    turn = asyncio.Event()

    async def answer(record: RequestRecord, model: str) -> object:
        await asyncio.wait_for(turn.wait(), 60)
        return {}

    bench.answer = answer
    task = bench.run()
    await until(lambda: bench.places[""].used == 1)
    blue = asyncio.create_task(bench.places[""].acquire("blue"))
    await asyncio.sleep(0)
    turn.set()
    await asyncio.wait_for(blue, 30)
    assert await bench.open() > 0, "it did not wait for the whole batch"
    bench.places[""].release("blue")
    await asyncio.wait_for(task, 30)


async def test_an_ended_batch_stops_what_is_in_flight(bench):
    begun: list[str] = []

    async def answer(record: RequestRecord, model: str) -> object:
        begun.append(record.request_id)
        await asyncio.Event().wait()
        return {}

    bench.answer = answer
    task = bench.run()
    await until(lambda: len(begun) == bench.max_in_flight)
    bench.job.end(EndReason.CANCELLED)
    await asyncio.wait_for(task, 30)
    assert await bench.open() == LINES


async def test_a_line_that_kills_the_engine_does_not_take_the_others_with_it(bench):
    """Each death counts for all lines that were in flight; from then on these run one at a time."""
    killer, in_engine = line_id(bench.job.id, 2), set[asyncio.Future[None]]()

    async def answer(record: RequestRecord, model: str) -> object:
        died = asyncio.get_running_loop().create_future()
        in_engine.add(died)
        await asyncio.wait({died}, timeout=0.02 if record.request_id == killer else 0.05)
        if record.request_id == killer:
            for each in in_engine:
                each.set_result(None)
            in_engine.clear()
        in_engine.discard(died)
        if died.done():
            raise unavailable("died", "replica_lost")
        return {}

    bench.answer = answer
    await asyncio.wait_for(bench.run(), 60)
    assert await bench.open() == 0 and bench.job.losses[2] == 5
    now = await move_batch(bench.store, "a", bench.job.id, {BatchStatus.VALIDATING}, BatchStatus.IN_PROGRESS)
    assert (now.completed, now.failed) == (LINES - 1, 1)


def break_off(monkeypatch: pytest.MonkeyPatch, bench: Bench, *lines: int) -> None:
    """Lines whose run ends in an error, once all others that came in with them are over."""
    close, broken = RequestRecord.close, {line_id(bench.job.id, line) for line in lines}
    over = set[str]()

    async def break_off(record: RequestRecord) -> None:
        await close(record)
        over.add(record.request_id)
        if record.request_id in broken:
            while len(over) < 4 or not broken <= over:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            raise RuntimeError(f"nobody foresaw this of {record.request_id}")

    monkeypatch.setattr(RequestRecord, "close", break_off)


@pytest.mark.parametrize("broken", [(1,), (1, 2)])
async def test_answers_are_kept_and_every_error_is_told_where_runs_of_lines_break_off(
    bench, monkeypatch, caplog, broken
):
    break_off(monkeypatch, bench, *broken)
    bench.answer = a_good_answer
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(bench.run(), 60)
    told = str(raised.value.exceptions) + caplog.text
    assert all(f"foresaw this of {line_id(bench.job.id, line)}" in told for line in broken)
    # The first error stops the others: an answer whose settling fails after that is whole, and kept.
    assert 1 <= await bench.open() <= len(broken) + 1


async def test_an_answer_that_is_whole_is_kept_where_the_stop_comes_while_it_is_settled(bench, monkeypatch):
    settling, go_on = asyncio.Event(), asyncio.Event()

    async def slow(record: RequestRecord) -> None:
        settling.set()
        await go_on.wait()

    monkeypatch.setattr(RequestRecord, "close", slow)
    bench.places[""] = type(bench.places[""])(1)
    bench.answer = a_good_answer
    task = bench.run()
    await asyncio.wait_for(settling.wait(), 60)
    bench.job.end(EndReason.CANCELLED)
    go_on.set()
    await asyncio.wait_for(task, 30)
    assert await bench.open() == LINES - 1


async def test_refused_lines_come_again_before_those_behind_them(store, monkeypatch):
    bench = await make_bench(store, monkeypatch, ["a"] * 12, ["a"], max_in_flight=2)
    numbers = {line_id(bench.job.id, number): number for number in range(1, 13)}
    begun: list[int] = []

    async def refuse(record: RequestRecord, model: str) -> object:
        begun.append(numbers[record.request_id])
        raise unavailable("full", "queue_full", 0.02)

    bench.answer = refuse
    task = bench.run()
    await until(lambda: len(begun) >= 6)
    bench.job.end(EndReason.CANCELLED)
    await asyncio.wait_for(task, 30)
    assert max(begun) <= 2


def test_pauses_double_up_to_a_minute_and_begin_anew_with_an_answer():
    backoff, now, pauses = Backoff(), 0.0, []
    for _ in range(8):
        pauses.append(backoff.refused(now))
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    backoff.answered()
    assert backoff.refused(1000.0) == 1


def test_a_pause_is_as_long_as_the_refusal_says_and_refusals_in_it_are_one():
    backoff = Backoff()
    assert backoff.refused(0.0, 7.0) == 7.0 and backoff.pause_s(2.0) == 5.0
    assert backoff.refused(3.0, 30.0) == 0.0 and backoff.pause_s(7.0) == 0.0
