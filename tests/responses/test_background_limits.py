"""How many responses run in the background, for whom, and what they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from asking import code_of
from background_runs import Open, events_again, hold, queue, state
from kvarn.replica.client.protocol import ReplicaState, RequestRefusedError
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from kvarn.wire.messages import RefusalReason
from kvarn.wire.openai.errors import ApiError

ASK = {"model": "tiny", "input": "x", "background": True}


@pytest.fixture
def kept(open_gateway: Open) -> Iterator[Any]:
    with open_gateway() as server:
        yield server


def test_refusals_that_pass_are_waited_out_and_others_fail_it(kept, wait_for, monkeypatch):
    told: list[tuple[str, int, str]] = []
    reply = attrgetter("request_id", "reply.status", "reply.error_code")
    monkeypatch.setattr(kept.gateway.control.traces, "ended", lambda record, *_: told.append(reply(record)))
    kept.chat.refusal = RequestRefusedError(RefusalReason.QUEUE_FULL, "the queue is full", retry_after_s=0.1)
    busy = queue(kept)
    wait_for(lambda: len(kept.chat.submitted) >= 1, "the first try")
    kept.chat.refusal = None
    kept.chat.state = ReplicaState.STARTING
    starting = queue(kept)
    kept.chat.state = ReplicaState.READY
    too_long = queue(kept, input="x" * 600)
    wait_for(lambda: state(kept, busy)["status"] == "completed", "the busy one")
    wait_for(lambda: state(kept, starting)["status"] == "completed", "the one that waited for the model")
    wait_for(lambda: state(kept, too_long)["status"] == "failed", "the impossible one to fail")
    failed = state(kept, too_long)
    assert failed["error"]["code"] == "invalid_prompt" and "context" in failed["error"]["message"]
    assert events_again(kept, too_long)[-1]["type"] == "response.failed"
    wait_for(lambda: too_long in {name for name, *_ in told}, "the last try to be over")
    assert {each for each in told if each[0] in (busy, too_long)} == {
        (busy, 429, "queue_full"),
        (busy, 200, ""),
        (too_long, 400, "context_length_exceeded"),
    }


def test_no_more_run_than_the_server_allows(open_gateway):
    with open_gateway(max_background=1) as server, server.client() as client:
        hold(server)
        first = queue(server)
        answer = client.post("/v1/responses", json=ASK)
        assert code_of(answer) == (429, "too_many_background")
        assert "retry-after" in answer.headers
        client.post(f"/v1/responses/{first}/cancel").raise_for_status()
        server.chat.hold = None
        queue(server)


def test_an_empty_account_is_not_waited_for(kept, wait_for):
    refused: list[str] = []

    class Refusing:
        name = "refusing"

        async def enter(self, turn: Any) -> None:
            refused.append(turn.record.request_id)
            raise ApiError(429, "The budget is spent.", code="insufficient_quota", headers={"retry-after": "1"})

    stage = Refusing()
    kept.gateway.steps.stages.insert(0, stage)
    response_id = queue(kept)
    wait_for(lambda: state(kept, response_id)["status"] == "failed", "it to fail")
    kept.gateway.steps.stages.remove(stage)
    assert refused == [response_id]
    assert state(kept, response_id)["error"]["message"] == "The budget is spent."


def test_a_key_revoked_while_it_waits_ends_a_response(kept, wait_for):
    with kept.add_tenant("red") as red:
        owner = kept.authenticator.principals["red"]

        async def change(revoked: str | None) -> str:
            async with audited_change(kept.gateway.store, Actor("a test")) as change:
                if revoked is not None:
                    await revoke_key(change, owner.organization_id, revoked)
                    return revoked
                key, _ = await add_key(change, owner.organization_id, owner.project_id, KeyRequest(name="k"))
                return key.id

        key_id = kept.do(change(None))
        kept.authenticator.principals["red"] = replace(owner, key_id=key_id)
        kept.chat.refusal = RequestRefusedError(RefusalReason.QUEUE_FULL, "the queue is full", retry_after_s=0.1)
        made = red.post("/v1/responses", json=ASK).json()
        wait_for(lambda: len(kept.chat.submitted) >= 1, "the first try")
        kept.do(change(key_id))
        wait_for(lambda: red.get(f"/v1/responses/{made['id']}").json()["status"] == "failed", "it to fail")
        kept.chat.refusal = None
        assert "no longer" in red.get(f"/v1/responses/{made['id']}").json()["error"]["message"]
        assert not kept.chat.finished


def test_one_organisation_does_not_take_all_places(open_gateway):
    with open_gateway(max_background=16) as server:
        hold(server)
        with server.add_tenant("red") as red, server.add_tenant("blue") as blue:
            assert [red.post("/v1/responses", json=ASK).status_code for _ in range(3)] == [200, 200, 429]
            assert blue.post("/v1/responses", json=ASK).status_code == 200


def test_places_are_not_exceeded_by_those_who_ask_at_once(open_gateway):
    with open_gateway(max_background=16) as server:
        hold(server)
        with server.add_tenant("red") as red, ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: red.post("/v1/responses", json=ASK), range(16)))
            assert sorted(answer.status_code for answer in answers) == [200] * 2 + [429] * 14
            made = next(answer.json()["id"] for answer in answers if answer.status_code == 200)
            red.post(f"/v1/responses/{made}/cancel").raise_for_status()
            refused = {**ASK, "input": []}
            assert [red.post("/v1/responses", json=refused).status_code for _ in range(3)] == [400] * 3
            assert red.post("/v1/responses", json=ASK).status_code == 200, "what was refused has left its place"
