"""The fair semaphore: places go round robin by tenant, within every bound, and none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.fairness.semaphore import FairSemaphore


class Holders:
    """Tasks that hold a place until they are told to end."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self.semaphore = semaphore
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, *names: str) -> None:
        """Names are `tenant/number`."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        async with self.semaphore.place(name.split("/")[0]):
            self.began.append(name)
            await self._ends[name].wait()


async def test_tenants_take_turns_and_come_in_order_within_each() -> None:
    holders = Holders(FairSemaphore(1))
    await holders.add("red/0", "red/1", "red/2", "blue/0", "green/0", "blue/1")
    for number in range(6):
        await holders.end(holders.began[number])
    assert holders.began == ["red/0", "blue/0", "green/0", "red/1", "blue/1", "red/2"]
    assert holders.semaphore.used == 0


async def test_a_tenant_at_its_bound_holds_up_nobody() -> None:
    holders = Holders(FairSemaphore(3, per_tenant=1))
    await holders.add("red/0", "red/1", "blue/0", "blue/1", "green/0")
    assert holders.began == ["red/0", "blue/0", "green/0"]
    await holders.end("blue/0")
    assert holders.began[3:] == ["blue/1"]


async def test_who_leaves_while_waiting_loses_no_place() -> None:
    holders = Holders(FairSemaphore(1))
    await holders.add("red/0", "red/1", "blue/0")
    holders.tasks["blue/0"].cancel()
    await asyncio.sleep(0)
    await holders.end("red/0")
    assert holders.began == ["red/0", "red/1"]
    holders.tasks["red/1"].cancel()
    await asyncio.gather(holders.tasks["red/1"], return_exceptions=True)
    assert holders.semaphore.used == 0 and not holders.semaphore.holders()


async def test_who_is_cancelled_as_its_turn_comes_passes_it_on() -> None:
    semaphore = FairSemaphore(1)
    await semaphore.acquire("red")
    first, second = asyncio.create_task(semaphore.acquire("blue")), asyncio.create_task(semaphore.acquire("green"))
    await asyncio.sleep(0)
    semaphore.release("red")
    first.cancel()
    await second
    assert semaphore.holders() == {"green"}


async def test_a_job_keeps_its_place_though_its_caller_leaves() -> None:
    semaphore, job = FairSemaphore(1), asyncio.get_running_loop().create_future()
    caller = asyncio.create_task(semaphore.run("red", lambda: job))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert semaphore.used == 1
    job.set_exception(ValueError("nobody asks any more"))
    await asyncio.sleep(0)
    assert semaphore.used == 0


async def test_an_error_of_a_job_reaches_its_caller() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await FairSemaphore(1).run("red", lambda: asyncio.ensure_future(fail()))


OPERATIONS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.booleans()), max_size=60)
BOUNDS: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"per_tenant": 30}, {"times_free": 3}])


@given(OPERATIONS, BOUNDS)
def test_no_bound_is_ever_passed_and_what_is_released_is_free_again(operations, bounds) -> None:
    semaphore, held = FairSemaphore(100, **bounds), dict.fromkeys("abc", 0)
    for tenant, places, take in operations:
        if take:
            before = semaphore.used
            taken = semaphore.try_acquire(tenant, places)
            held[tenant] += places * taken
            assert not taken or "times_free" not in bounds or held[tenant] <= 3 * (100 - semaphore.used)
            assert taken or semaphore.used == before
        elif held[tenant]:
            released = min(places, held[tenant])
            semaphore.release(tenant, released)
            held[tenant] -= released
        assert semaphore.used == sum(held.values()) <= 100
        assert all(semaphore.held(name) == count <= bounds.get("per_tenant", 100) for name, count in held.items())
        assert semaphore.holders() == {name for name, count in held.items() if count}


async def test_a_place_is_wanted_where_somebody_who_waits_would_get_it() -> None:
    semaphore = FairSemaphore(2, per_tenant=1)
    holders = Holders(semaphore)
    await holders.add("red/1", "blue/1")
    assert not semaphore.is_wanted("red")
    await holders.add("red/2")
    assert semaphore.is_wanted("red") and not semaphore.is_wanted("blue"), "red has as many as it may"
    holders.tasks["red/2"].cancel()
    await asyncio.wait([holders.tasks["red/2"]])
    assert not semaphore.is_wanted("red")
    await holders.add("green/1")
    assert semaphore.is_wanted("red") and semaphore.is_wanted("blue")
    for name in ("red/1", "green/1", "blue/1"):
        await holders.end(name)
