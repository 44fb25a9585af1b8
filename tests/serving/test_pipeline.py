"""Work is settled to the end, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from kvarn.serving.pipeline import Work
from kvarn.store.owner import ANYBODY


async def test_a_caller_cancelled_twice_leaves_nothing_unsettled() -> None:
    left: list[str] = []

    async def slow(name: str, work: Work) -> None:
        await asyncio.sleep(0.05)
        left.append(name)

    work = Work(
        request_id="r", endpoint="/", principal=ANYBODY, model="m", prompt_tokens=1, max_output_tokens=1, received=0.0
    )
    work.settlements += [partial(slow, "ledger"), partial(slow, "limits")]
    closing = asyncio.create_task(work.close())
    for _ in range(3):
        await asyncio.sleep(0.01)
        closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    assert left == ["limits", "ledger"] and closing.cancelled()
