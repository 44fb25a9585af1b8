"""A request's work is settled whole, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import suppress
from typing import Any

import pytest

from kvarn.answers.work import RequestRecord, Work
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.wire.openai.errors import ApiError


async def test_a_caller_cancelled_twice_leaves_nothing_unsettled() -> None:
    left: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        left.append("lock")

    record = RequestRecord("r")
    record.closing.callback(left.append, "memory")
    record.closing.push_async_callback(run_to_completion, slow())
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
    record.closing.callback(left.append, "limits")
    record.closing.callback(broken)
    await record.close()
    assert left == ["limits"]


async def test_a_stage_that_refuses_undoes_those_before_it(server: Any) -> None:
    left: list[Work] = []

    async def take(work: Work) -> None:
        work.closing.callback(left.append, work)

    async def refuse(work: Work) -> None:
        raise ApiError(429, "no")

    record = RequestRecord("r", endpoint="/v1/chat/completions")
    gateway = dataclasses.replace(server.gateway, stages=(take, refuse))
    model = gateway.ready_model(record, "tiny", "generate")
    with pytest.raises(ApiError):
        await gateway.begin(record, model, prompt_tokens=1)
    (work,) = left
    assert work.usage.failed and record.work is None
