"""What a request holds is given back and settled whole, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kvarn.answers.record import RequestRecord
from kvarn.jobs.run_to_completion import run_to_completion


async def test_a_caller_cancelled_twice_leaves_nothing_unsettled() -> None:
    left: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        left.append("lock")

    record = RequestRecord("r")
    record.holdings.callback(left.append, "memory")
    record.holdings.push_async_callback(run_to_completion, slow())
    closing = asyncio.create_task(record.close())
    for _ in range(3):
        await asyncio.sleep(0.01)
        closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    assert left == ["lock", "memory"] and closing.cancelled()


async def test_what_cannot_be_settled_keeps_nothing_else_from_it() -> None:
    left: list[str] = []

    def broken() -> None:
        raise RuntimeError("the ledger")

    record = RequestRecord("r")
    record.holdings.callback(left.append, "limits")
    record.holdings.callback(broken)
    await record.close()
    assert left == ["limits"]
