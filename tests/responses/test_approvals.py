"""Calls that wait for the client's approval."""

from __future__ import annotations

import asyncio
import secrets
import threading
from typing import Any

import pytest

from asking import CHAT, chat, code_of, prompt_of
from fake_tools import FakeProvider, FakeTool, echo
from kvarn.tools.types import ToolCall, ToolContext, ToolResult
from kvarn.wire.openai.errors import ApiError
from published_schemas import check
from scripted_answers import called

PAY: Any = {"type": "payments"}
ASK: dict[str, Any] = {"model": "tiny", "input": "Pay.", "tools": [PAY]}


@pytest.fixture
def pay(server, scripted, monkeypatch) -> FakeTool:
    tool = FakeTool("pay", needs_approval=True, item_fields={"server_label": "bank", "name": "transfer"})
    monkeypatch.setitem(server.gateway.tools._providers, "payments", FakeProvider([tool]))
    scripted("I shall pay." + called("pay", amount=5), "Done.")
    return tool


def answer_to(request: Any, *, approve: bool, reason: str | None = None) -> Any:
    return {
        "type": "mcp_approval_response",
        "approval_request_id": request.id,
        "approve": approve,
        "reason": reason,
    }


def test_an_approved_call_runs_before_the_model_goes_on(server, pay, sdk):
    first = sdk.responses.create(**ASK)
    request = first.output[-1]
    assert (request.type, request.server_label, request.name) == ("mcp_approval_request", "bank", "transfer")
    assert first.status == "completed" and not pay.calls
    check("Response", {**first.to_dict(), "tools": []})
    second = sdk.responses.create(
        model="tiny", tools=[PAY], previous_response_id=first.id, input=[answer_to(request, approve=True)]
    )
    call, message = second.output
    assert (call.type, call.approval_request_id, call.status) == ("mcp_call", request.id, "completed")
    assert message.content[0].text == "Done." and len(pay.calls) == 1
    assert "got {" in prompt_of(server)
    third = sdk.responses.create(model="tiny", tools=[PAY], previous_response_id=second.id, input="And?")
    assert third.status == "completed" and len(pay.calls) == 1, "it has run"


def test_a_denied_call_does_not_run_and_the_model_is_told(server, pay, sdk):
    first = sdk.responses.create(**ASK)
    answer = answer_to(first.output[-1], approve=False, reason="Too much.")
    second = sdk.responses.create(model="tiny", tools=[PAY], previous_response_id=first.id, input=[answer])
    assert second.output_text == "Done." and not pay.calls
    assert "The user did not allow this call. The reason given: Too much." in prompt_of(server)


def test_items_that_the_client_keeps_itself_may_be_approved(pay, sdk):
    first = sdk.responses.create(**ASK, store=False)
    request = first.output[-1]
    said: Any = [{"role": "user", "content": "Pay."}, *[item.to_dict() for item in first.output]]
    second = sdk.responses.create(
        model="tiny", tools=[PAY], input=[*said, answer_to(request, approve=True)], store=False
    )
    assert second.output_text == "Done." and [call.arguments for call in pay.calls] == [request.arguments]


def test_what_cannot_be_approved_is_refused(pay, sdk, client):
    first = sdk.responses.create(**ASK)
    answer = answer_to(first.output[-1], approve=True)
    unknown = {**answer, "approval_request_id": "mcpr_none"}
    refused = client.post("/v1/responses", json={**ASK, "input": [unknown]})
    assert code_of(refused) == (400, "approval_request_not_found")
    for tools in ([], [{"type": "clock"}]):
        body = {"model": "tiny", "previous_response_id": first.id, "input": [answer], "tools": tools}
        assert code_of(client.post("/v1/responses", json=body)) == (400, "tool_not_offered")
    assert client.post(CHAT, json=chat(tools=[{"type": "mcp", "server_label": "none"}])).status_code == 404
    assert not pay.calls


def test_more_calls_than_a_request_may_have_cannot_be_approved(pay, client):
    asked = [
        {
            "type": "mcp_approval_request",
            "id": f"mcpr_{n}",
            "server_label": "bank",
            "name": "transfer",
            "arguments": "{}",
        }
        for n in range(3)
    ]
    answers = [{"type": "mcp_approval_response", "approval_request_id": each["id"], "approve": True} for each in asked]
    body = {**ASK, "input": [{"role": "user", "content": "Pay."}, *asked, *answers], "max_tool_calls": 2}
    assert code_of(client.post("/v1/responses", json=body)) == (400, "too_many_calls")
    assert not pay.calls


def approving(first: Any, **fields: Any) -> dict[str, Any]:
    """A request that approves the call for which a response asks."""
    answer = answer_to(first.output[-1], approve=True)
    return {"model": "tiny", "tools": [PAY], "previous_response_id": first.id, "input": [answer], **fields}


def test_an_approval_that_is_sent_again_gets_the_first_result(server, pay, sdk, client):
    first = sdk.responses.create(**ASK)
    made = [sdk.responses.create(**approving(first)) for _ in range(2)]
    assert len(pay.calls) == 1
    shown = [response.output[0] for response in made]
    assert shown[0].output == shown[1].output == f"got {first.output[-1].arguments}"
    assert {each.approval_request_id for each in shown} == {first.output[-1].id}
    assert "got {" in prompt_of(server)
    sdk.responses.delete(made[0].id)
    refused = client.post("/v1/responses", json=approving(first))
    assert code_of(refused) == (409, "approval_used") and "result is not kept" in refused.text
    assert refused.headers["x-should-retry"] == "false" and len(pay.calls) == 1


def test_an_approval_that_is_sent_again_while_its_call_runs_is_refused(server, pay, sdk, client, wait_for):
    may_end = threading.Event()

    async def work(context: ToolContext, call: ToolCall) -> ToolResult:
        await asyncio.to_thread(may_end.wait, 60)
        return ToolResult("paid")

    pay.work = work
    first = sdk.responses.create(**ASK)
    queued = sdk.responses.create(**approving(first), background=True)
    try:
        wait_for(lambda: pay.calls, "the call to run")
        assert code_of(client.post("/v1/responses", json=approving(first))) == (409, "approved_call_running")
    finally:
        may_end.set()
    wait_for(lambda: sdk.responses.retrieve(queued.id).status == "completed", "the response to end")
    for _ in range(2):
        again = sdk.responses.create(**approving(first))
        assert again.output[0].output == "paid" and len(pay.calls) == 1


def test_of_a_request_that_is_not_stored_no_result_is_kept(server, pay, sdk, client):
    first = sdk.responses.create(**ASK)
    sdk.responses.create(**approving(first, store=False))
    refused = client.post("/v1/responses", json=approving(first))
    assert code_of(refused) == (409, "approval_used") and len(pay.calls) == 1


def requests_to_pay(count: int) -> list[dict[str, Any]]:
    names = {"server_label": "bank", "name": "transfer"}
    kind = "mcp_approval_request"
    return [{"type": kind, "id": f"mcpr_{secrets.token_hex(8)}", **names, "arguments": f"{n}"} for n in range(count)]


def approving_all(asked: list[dict[str, Any]]) -> dict[str, Any]:
    answers = [{"type": "mcp_approval_response", "approval_request_id": each["id"], "approve": True} for each in asked]
    return {**ASK, "input": [{"role": "user", "content": "Pay."}, *asked, *answers]}


def test_an_approval_lets_no_other_call_run(pay, client):
    (asked,) = requests_to_pay(1)
    assert client.post("/v1/responses", json=approving_all([asked])).status_code == 200
    refused = client.post("/v1/responses", json=approving_all([asked | {"arguments": "5"}]))
    assert code_of(refused) == (409, "approval_used") and "another call" in refused.text
    other = requests_to_pay(1)
    assert code_of(client.post("/v1/responses", json=approving_all([*other, asked | {"arguments": "5"}])))[0] == 409
    assert [call.arguments for call in pay.calls] == ["0"], "all run, or none"
    assert client.post("/v1/responses", json=approving_all(other)).status_code == 200
    assert len(pay.calls) == 2


def test_a_call_that_did_not_begin_may_be_approved_again(server, pay, client):
    places = server.gateway.tools.runner.config.max_parallel
    asked = requests_to_pay(places + 2)  # the first makes room for one more
    all_run = asyncio.Event()

    async def work(context: ToolContext, call: ToolCall) -> ToolResult:
        if len(pay.calls) == places:
            all_run.set()
        await (all_run.wait() if call.arguments == "0" else asyncio.Event().wait())
        raise ApiError(400, "The bank is closed.", code="closed")

    pay.work = work
    assert code_of(client.post("/v1/responses", json=approving_all(asked))) == (400, "closed")
    pay.work = echo
    again = client.post("/v1/responses", json=approving_all(asked[:1]))
    assert code_of(again) == (409, "approval_used") and "failed" in again.text
    assert client.post("/v1/responses", json=approving_all(asked[-1:])).status_code == 200
    assert pay.calls[-1].arguments == asked[-1]["arguments"]


@pytest.mark.parametrize("store", [True, False])
def test_a_refusal_after_an_approved_call_does_not_let_it_run_again(pay, sdk, client, monkeypatch, store: bool):
    first = sdk.responses.create(**ASK)

    async def refuse(*_: Any, **__: Any) -> None:
        raise ApiError(429, "Too many requests.", code="rate_limit_exceeded")

    with monkeypatch.context() as patched:
        patched.setattr("kvarn.tools.loop.start_chat", refuse)
        refused = client.post("/v1/responses", json=approving(first, store=store))
    assert code_of(refused) == (429, "rate_limit_exceeded") and "have run" in refused.text
    assert refused.headers.get("x-should-retry") == (None if store else "false")
    again = client.post("/v1/responses", json=approving(first, store=store))
    assert again.status_code == (200 if store else 409)
    assert len(pay.calls) == 1
