"""Threads for text work: shared by turns, and never more at work than there are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvarn.catalog.text_pool import TextPool

LONG = 1_000_000


class Desk:
    """A pool with one thread, which works only when a test says so."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1)
        self.pool = TextPool(self.executor, 1)
        self.steps = threading.Semaphore(0)
        self.done: list[str] = []

    def work(self, name: str) -> str:
        assert self.steps.acquire(timeout=10)
        self.done.append(name)
        return name

    def ask(self, tenant: str, name: str) -> asyncio.Task[str]:
        return asyncio.create_task(self.pool.run(tenant, LONG, lambda: self.work(name)))


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.steps.release(100)
    made.executor.shutdown()


async def test_tenants_take_turns_however_much_one_of_them_asks(desk: Desk) -> None:
    tasks = [desk.ask("red", f"red {i}") for i in range(4)]
    tasks += [desk.ask("blue", "blue 0"), desk.ask("green", "green 0"), desk.ask("blue", "blue 1")]
    await asyncio.sleep(0)
    desk.steps.release(len(tasks))
    await asyncio.gather(*tasks)
    assert desk.done == ["red 0", "blue 0", "green 0", "red 1", "blue 1", "red 2", "red 3"]


async def test_who_leaves_loses_its_turn_and_a_thread_at_work_is_not_free(desk: Desk) -> None:
    first, second, third = (desk.ask("red", name) for name in ("first", "second", "third"))
    await asyncio.sleep(0.01)
    first.cancel()
    second.cancel()
    await asyncio.wait({first, second})
    assert first.cancelled() and second.cancelled()
    assert desk.executor._work_queue.qsize() == 0, "nothing was given to the thread that still works on the first"
    desk.steps.release(2)
    assert await third == "third"
    assert desk.done == ["first", "third"]


async def test_an_error_reaches_whoever_asked_and_frees_the_thread(desk: Desk) -> None:
    def fail() -> None:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await desk.pool.run("red", LONG, fail)
    desk.steps.release()
    assert await desk.ask("red", "after") == "after"


async def test_short_work_waits_for_nobody(desk: Desk) -> None:
    blocked = desk.ask("red", "long")
    await asyncio.sleep(0)
    assert await desk.pool.run("red", 10, lambda: "short") == "short"
    desk.steps.release()
    await blocked
