"""Calls that wait for the client's approval."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from asking import CHAT, chat, code_of, prompt_of
from fake_tools import FakeProvider, FakeTool
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


def test_a_refusal_after_an_approved_call_is_not_tried_again(pay, sdk, monkeypatch):
    first = sdk.responses.create(**ASK)

    async def refuse(*_: Any, **__: Any) -> None:
        raise ApiError(429, "Too many requests.", code="rate_limit_exceeded")

    monkeypatch.setattr("kvarn.tools.loop.start_chat", refuse)
    answer = answer_to(first.output[-1], approve=True)
    with pytest.raises(openai.RateLimitError, match="have run"):
        sdk.with_options(max_retries=2).responses.create(
            model="tiny", tools=[PAY], previous_response_id=first.id, input=[answer]
        )
    assert len(pay.calls) == 1
