"""Work is settled to the end, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kvarn.serving.pipeline import Work
from kvarn.store.owner import ANYBODY


class SlowTicket:
    """Takes a moment to leave."""

    def __init__(self, left: list[str], name: str) -> None:
        self._left, self._name = left, name

    async def leave(self, work: Work) -> None:
        await asyncio.sleep(0.05)
        self._left.append(self._name)


async def test_a_caller_cancelled_twice_leaves_no_ticket_behind() -> None:
    left: list[str] = []
    work = Work(
        request_id="r", endpoint="/", principal=ANYBODY, model="m", prompt_tokens=1, max_output_tokens=1, received=0.0
    )
    work.tickets += [SlowTicket(left, "ledger"), SlowTicket(left, "limits")]
    closing = asyncio.create_task(work.close())
    for _ in range(3):
        await asyncio.sleep(0.01)
        closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    assert left == ["limits", "ledger"] and closing.cancelled()
