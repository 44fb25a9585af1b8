"""Responses in the background whose gateway stops while their tools run: no call runs twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from asking import prompt_of
from background_runs import queue, state
from fake_tools import FakeProvider, FakeTool
from kvarn.store.models import StoredToolCall
from kvarn.tools.types import ToolCall, ToolContext, ToolResult
from scripted_answers import called, script

TO = ("one", "two")


@pytest.fixture
def pay(monkeypatch) -> FakeTool:
    """Pays once; its second payment takes for ever."""

    async def work(context: ToolContext, call: ToolCall) -> ToolResult:
        if "two" in call.arguments:
            await asyncio.Event().wait()
        return ToolResult("paid one")

    tool = FakeTool("pay", work)
    monkeypatch.setattr("kvarn.gateway.build.CLOCK", FakeProvider([tool]))
    return tool


def calls_of(server: Any, response_id: str) -> list[tuple[str, bool]]:
    async def read() -> list[tuple[str, bool]]:
        async with server.gateway.store.reading() as session:
            mine = select(StoredToolCall).where(StoredToolCall.answer_id == response_id)
            return sorted((row.status, row.result is not None) for row in await session.scalars(mine))

    found: list[tuple[str, bool]] = server.do(read())
    return found


def test_calls_are_not_run_again_and_the_model_is_told(open_gateway, pay, wait_for):
    said = called("pay", to="one"), called("pay", to="two"), "Paid, I think."
    with open_gateway(lambda server: script(server, *said)) as first:
        response_id = queue(first, tools=[{"type": "clock"}])
        wait_for(lambda: len(pay.calls) == 2, "both calls to run")
        assert calls_of(first, response_id) == [("completed", True), ("started", False)]
    with open_gateway(lambda server: script(server, *said)) as second:
        wait_for(lambda: state(second, response_id)["status"] == "completed", "it to be made to its end")
        one, two = state(second, response_id)["output"][:2]
        assert (one["status"], one["output"], two["status"]) == ("completed", "paid one", "incomplete")
        assert len(pay.calls) == 2 and "not known whether this call has run" in prompt_of(second)
        wait_for(lambda: ("completed", False) in calls_of(second, response_id), "results to be dropped")


def test_approved_calls_are_not_run_again_either(open_gateway, pay, wait_for):
    pay.needs_approval = True
    named = {"server_label": "fakes", "name": "pay"}
    asked = [{"type": "mcp_approval_request", "id": f"mcpr_{to}", **named, "arguments": f'"{to}"'} for to in TO]
    yes = [{"type": "mcp_approval_response", "approval_request_id": f"mcpr_{to}", "approve": True} for to in TO]
    said = [{"role": "user", "content": "Pay."}, *asked, *yes]
    with open_gateway(lambda server: script(server, "Paid, I think.")) as first:
        response_id = queue(first, tools=[{"type": "clock"}], input=said)
        wait_for(lambda: calls_of(first, response_id) == [("completed", True), ("started", False)], "one to end")
        wait_for(lambda: len(pay.calls) == 2, "both calls to run")
    with open_gateway(lambda server: script(server, "Paid, I think.")) as second:
        wait_for(lambda: state(second, response_id)["status"] == "completed", "it to be made to its end")
        one, two = state(second, response_id)["output"][:2]
        assert (one["status"], one["output"], two["status"]) == ("completed", "paid one", "incomplete")
        assert len(pay.calls) == 2 and "not known whether this call has run" in prompt_of(second)
