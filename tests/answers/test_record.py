"""What a request holds is given back and settled whole, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Prompt, Turn
from kvarn.catalog.models import BuiltInModel
from kvarn.jobs.run_to_completion import run_to_completion


async def test_a_caller_cancelled_twice_leaves_nothing_unsettled():
    left: list[str] = []
    go_on = asyncio.Event()

    async def slow() -> None:
        await go_on.wait()
        left.append("lock")

    record = RequestRecord("r")
    record.holdings.callback(left.append, "memory")
    record.holdings.push_async_callback(run_to_completion, slow())
    closing = asyncio.create_task(record.close())
    for _ in range(3):
        await asyncio.sleep(0)
        closing.cancel()
    go_on.set()
    with suppress(asyncio.CancelledError):
        await closing
    assert left == ["lock", "memory"] and closing.cancelled()


async def test_what_cannot_be_settled_keeps_nothing_else_from_it():
    left: list[str] = []

    def broken() -> None:
        raise RuntimeError("the ledger")

    record = RequestRecord("r")
    record.holdings.callback(left.append, "limits")
    record.holdings.callback(broken)
    await record.close()
    assert left == ["limits"]


class TokenIds(list[int]):
    """Token ids that can be referred to weakly."""


@pytest.mark.parametrize("failed", [False, True])
async def test_the_prompt_of_an_ended_turn_leaves_memory_without_garbage_collection(failed):
    gc.disable()
    try:
        record, token_ids = RequestRecord("r"), TokenIds(range(100))
        prompt = Prompt(model=BuiltInModel("m", "v", "here"), tokens=100, token_ids=token_ids)
        turn = Turn(record=record, model="m", prompt=prompt, prompt_tokens=100, max_output_tokens=1)
        kept = weakref.ref(token_ids)
        del prompt, token_ids
        assert kept() is not None
        if failed:
            turn.give_up()
        else:
            record.turns.append(turn)
            await record.close()
        assert kept() is None and turn.prompt_tokens == 100
    finally:
        gc.enable()
