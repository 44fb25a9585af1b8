"""Responses in the background: they outlive their client and their gateway, and run once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import func, select, update

from asking import code_of
from background_runs import Open, events_again, hold, hold_later, queue, state
from fake_replica import answer_text
from kvarn.config.platform import StoreConfig
from kvarn.store.models import StoredResponse, UsageEvent
from kvarn.store.repositories.conversations import responses


@pytest.fixture
def kept(open_gateway: Open) -> Iterator[Any]:
    with open_gateway() as server:
        yield server


@pytest.fixture
def sdk(kept: Any) -> Iterator[openai.OpenAI]:
    with kept.sdk() as made:
        yield made


def usage_events(server: Any) -> int:
    async def count() -> int:
        async with server.gateway.store.reading() as session:
            return int(await session.scalar(select(func.count()).select_from(UsageEvent)) or 0)

    counted: int = server.do(count())
    return counted


def test_it_is_queued_at_once_and_runs_without_its_client(kept, sdk, wait_for):
    go_on = hold(kept)
    queued = sdk.responses.create(model="tiny", input="Hej", background=True)
    assert queued.status == "queued" and queued.background and queued.output == []
    wait_for(lambda: len(kept.chat.running) == 1, "the engine to be asked")
    assert sdk.responses.retrieve(queued.id).status in ("queued", "in_progress")
    with pytest.raises(openai.ConflictError) as conflict:
        sdk.responses.create(model="tiny", input="x", previous_response_id=queued.id)
    assert conflict.value.code == "response_in_progress"
    go_on()
    wait_for(lambda: sdk.responses.retrieve(queued.id).status == "completed", "the response to be completed")
    made = sdk.responses.retrieve(queued.id)
    assert made.output_text == "Hello, världen! 🌍" and made.usage is not None and made.usage.output_tokens == 22
    assert len(sdk.responses.input_items.list(queued.id).data) == 1
    wait_for(lambda: usage_events(kept) == 1, "its one usage event")
    after = sdk.responses.create(model="tiny", input="more", previous_response_id=queued.id)
    assert after.status == "completed"


def test_it_can_be_followed_live_by_many_from_any_event(kept, sdk):
    kept.chat.step_s = 0.02
    stream = sdk.responses.create(model="tiny", input="Hej", background=True, stream=True)
    seen: list[Any] = []
    for event in stream:
        seen.append(event)
        if len(seen) == 9:
            break
    stream.close()  # its client leaves: it goes on
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    response_id = seen[0].response.id
    rest = list(sdk.responses.retrieve(response_id, stream=True, starting_after=8))
    assert [event.sequence_number for event in rest] == list(range(9, 9 + len(rest)))
    assert rest[-1].type == "response.completed" and rest[-1].response.output_text == "Hello, världen! 🌍"
    whole = events_again(kept, response_id)
    assert [event["type"] for event in whole] == [event.type for event in [*seen, *rest]]


def test_it_is_cancelled_and_what_was_written_stays(kept, sdk, wait_for):
    kept.chat.step_s, kept.chat.answer = 0.02, lambda request, index: answer_text("abc" * 100)
    response_id = queue(kept)
    wait_for(lambda: kept.chat.yields > 5, "some of it to be written")
    cancelled = sdk.responses.cancel(response_id)
    assert cancelled.status == "cancelled" and cancelled.output_text.startswith("abc")
    assert cancelled.usage is not None and cancelled.usage.output_tokens >= 3
    wait_for(lambda: len(kept.chat.aborted) == 1, "the engine's request to be aborted")
    assert sdk.responses.cancel(response_id) == cancelled == sdk.responses.retrieve(response_id)
    events = events_again(kept, response_id)
    assert events[-1]["type"] == "response.incomplete" and events[-1]["response"]["status"] == "cancelled"
    finished = sdk.responses.create(model="tiny", input="x", max_output_tokens=16)
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.cancel(finished.id)
    assert refusal.value.code == "not_cancellable"


def test_followers_of_a_cancelled_response_hear_of_its_end(kept):
    for wait in (True, False):  # before its first token, and after
        go_on = hold(kept)
        kept.chat.step_s, kept.chat.answer = 0.02, lambda request, index: answer_text("abc" * 100)
        response_id = queue(kept)
        with kept.client() as client, client.stream("GET", f"/v1/responses/{response_id}?stream=true") as answer:
            lines = answer.iter_text()
            text = next(lines)
            if not wait:
                go_on()
                while text.count("output_text.delta\n") < 3:
                    text += next(lines)
            with kept.client() as other:
                other.post(f"/v1/responses/{response_id}/cancel").raise_for_status()
            text += "".join(lines)
        events = [json.loads(block.partition("\ndata: ")[2]) for block in text.split("\n\n") if block]
        assert events[-1]["response"]["status"] == "cancelled"
        assert events == events_again(kept, response_id)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.thorough
def test_a_look_at_the_leases_while_the_end_is_written_takes_it_from_nobody(kept, sdk, monkeypatch):
    finish = responses.finish_background

    async def finish_slowly(*asked: Any) -> bool:
        written = await finish(*asked)
        looking = asyncio.ensure_future(kept.gateway.responses.poll())
        await asyncio.sleep(0.2)  # the commit's answer is still on its way
        looking.cancel()
        return written

    monkeypatch.setattr(responses, "finish_background", finish_slowly)
    events = list(sdk.responses.create(model="tiny", input="Hej", background=True, stream=True))
    assert events[-1].type == "response.completed"


def test_a_deleted_response_stops_and_is_gone(kept, sdk, wait_for):
    hold(kept)
    made = sdk.conversations.create()
    response_id = queue(kept, conversation=made.id)
    wait_for(lambda: len(kept.chat.running) == 1, "the engine to be asked")
    sdk.responses.delete(response_id)
    wait_for(lambda: not kept.chat.running, "the engine's request to be aborted")
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(response_id)
    kept.chat.hold = None
    assert sdk.responses.create(model="tiny", input="x", conversation=made.id).status == "completed"


def test_what_is_wrong_is_refused_before_it_is_queued(kept):
    with kept.client() as client:
        for changes, status in (
            ({"model": "nowhere"}, 404),
            ({"conversation": "conv_nowhere"}, 404),
            ({"input": []}, 400),
            ({"tools": [{"type": "function"}]}, 400),
        ):
            body = {"model": "tiny", "input": "x", "background": True, **changes}
            assert client.post("/v1/responses", json=body).status_code == status


def test_a_conversation_goes_on_in_the_background_and_is_locked_meanwhile(kept, sdk, wait_for):
    made = sdk.conversations.create()
    go_on = hold(kept)
    response_id = queue(kept, conversation=made.id)
    with pytest.raises(openai.ConflictError):
        sdk.responses.create(model="tiny", input="x", conversation=made.id)
    leased = leased_until(kept, response_id)
    wait_for(lambda: leased_until(kept, response_id) > leased, "its lease to be renewed")
    go_on()
    wait_for(lambda: state(kept, response_id)["status"] == "completed", "the response to be completed")
    assert len(sdk.conversations.items.list(made.id).data) == 2
    assert sdk.responses.create(model="tiny", input="x", conversation=made.id).status == "completed"


def test_a_gateway_that_stops_hands_its_responses_on(open_gateway, wait_for):
    with open_gateway(hold_later) as first:
        ids = [queue(first, input=[{"role": "user", "content": str(number)}]) for number in range(3)]
        wait_for(lambda: len(first.chat.running) == 3, "all of them to run")
    with open_gateway() as second:
        wait_for(lambda: all(state(second, each)["status"] == "completed" for each in ids), "them to be made again")
        assert len(second.chat.submitted) == 3
        assert attempts(second, ids) == [1, 1, 1]  # an orderly end is no failed attempt
        assert [state(second, each)["output"][0]["content"][0]["text"] for each in ids] == ["Hello, världen! 🌍"] * 3
        seeds = {submit.sampling.seed for submit in first.chat.submitted}
        assert {submit.sampling.seed for submit in second.chat.submitted} == seeds


def attempts(server: Any, ids: list[str]) -> list[int]:
    async def read() -> list[int]:
        async with server.gateway.store.reading() as session:
            query = select(StoredResponse.attempts).where(StoredResponse.id.in_(ids))
            return list(await session.scalars(query))

    found: list[int] = server.do(read())
    return found


def leased_until(server: Any, response_id: str) -> float:
    async def read() -> float:
        async with server.gateway.store.reading() as session:
            row = await session.get(StoredResponse, response_id)
            return float(row.leased_until)

    until: float = server.do(read())
    return until


def die(server: Any) -> None:
    """Leave everything as a killed gateway would: nothing is written any more, no lease renewed or given back."""
    worker = server.gateway.responses

    async def vanish() -> None:
        await worker._polls.stop()
        for run in list(worker.running.values()):
            await run.stop("lost")

    server.do(vanish())


def test_the_responses_of_a_dead_gateway_are_taken_over_once_and_then_given_up(open_gateway, wait_for):
    with ExitStack() as stack:
        servers = [stack.enter_context(open_gateway(hold_later)) for _ in range(2)]
        response_id = queue(servers[0])
        wait_for(lambda: len(servers[0].chat.running) == 1, "it to run")
        leased = leased_until(servers[0], response_id)
        wait_for(lambda: leased_until(servers[0], response_id) > leased, "its lease to be renewed")
        assert not servers[1].chat.submitted, "as long as its gateway lives nobody else touches it"
        die(servers[0])
        wait_for(lambda: len(servers[1].chat.running) == 1, "the other gateway to take it over")
        assert state(servers[0], response_id)["status"] in ("queued", "in_progress")
        die(servers[1])
        third = stack.enter_context(open_gateway())
        wait_for(lambda: state(third, response_id)["status"] == "failed", "it to be given up")
        failed = state(third, response_id)
        assert failed["error"]["code"] == "server_error" and "stopped 2 times" in failed["error"]["message"]
        assert not third.chat.submitted


def test_a_gateway_that_stood_still_does_not_take_over_what_runs_in_it(kept, wait_for):
    go_on = hold(kept)
    response_id = queue(kept)
    wait_for(lambda: len(kept.chat.running) == 1, "it to run")

    async def wake_up() -> None:
        async with kept.gateway.store.transaction() as session:
            await session.execute(update(StoredResponse).values(leased_until=0))
        await kept.gateway.responses.poll()

    kept.do(wake_up())
    go_on()
    wait_for(lambda: state(kept, response_id)["status"] == "completed", "it to end")
    assert len(kept.chat.submitted) == 1 and attempts(kept, [response_id]) == [1]


def test_two_gateways_share_the_work_and_any_can_follow_and_cancel(open_gateway, wait_for):
    with open_gateway() as first, open_gateway() as second:
        ids = [queue(server) for server in (first, second) for _ in range(4)]
        wait_for(lambda: all(state(first, each)["status"] == "completed" for each in ids), "all to be made")
        assert len(first.chat.submitted) == len(second.chat.submitted) == 4
        assert events_again(second, ids[0]) == events_again(first, ids[0])
        hold(first)
        response_id = queue(first)
        wait_for(lambda: len(first.chat.running) == 1, "it to run")
        following = f"/v1/responses/{response_id}?stream=true"
        with second.client() as client, first.client() as other, other.stream("GET", following) as answer:
            client.post(f"/v1/responses/{response_id}/cancel").raise_for_status()
            last = json.loads("".join(answer.iter_text()).strip().rpartition("\ndata: ")[2])
        assert last["response"] == state(second, response_id) and last["response"]["status"] == "cancelled"
        wait_for(lambda: not first.chat.running, "the other gateway to stop it")
        assert state(first, response_id)["status"] == "cancelled"
        assert events_again(second, response_id)[-1]["response"]["status"] == "cancelled"


def test_answers_survive_a_database_that_is_away(serve, tmp_path, wait_for):
    path = tmp_path / "kvarn.db"

    store = StoreConfig(url=f"sqlite:///{path}", timeout_s=2)
    with serve(config={"store": store}) as server, server.client() as client:
        conversation = client.post("/v1/conversations", json={}).json()["id"]
        gates = [hold(server)]
        response_id = queue(server)
        wait_for(lambda: len(server.chat.running) == 1, "the background one to run")
        with sqlite3.connect(path, isolation_level=None) as connection:
            connection.execute("BEGIN IMMEDIATE")  # whoever wants to write waits in vain
            gates[0]()
            server.chat.hold = None
            answer = client.post("/v1/responses", json={"model": "tiny", "input": "x"}).json()
            assert answer["status"] == "completed" and answer["store"] is False
            again = client.post("/v1/responses", json={"model": "tiny", "input": "x", "conversation": conversation})
            assert code_of(again) == (503, "database_away")
            connection.execute("ROLLBACK")
        wait_for(lambda: state(server, response_id)["status"] == "completed", "the background one to be kept")


def test_a_response_is_not_followed_by_a_stranger(kept, wait_for):
    hold(kept)
    with kept.add_tenant("other") as other, kept.client() as client:
        response_id = queue(kept)
        wait_for(lambda: len(kept.chat.running) == 1, "it to run")
        for ask in (other.get, other.delete):
            answer: httpx.Response = ask(f"/v1/responses/{response_id}")
            assert answer.status_code == 404
        assert other.get(f"/v1/responses/{response_id}?stream=true").status_code == 404
        assert other.post(f"/v1/responses/{response_id}/cancel").status_code == 404
        assert len(kept.chat.running) == 1
        client.post(f"/v1/responses/{response_id}/cancel").raise_for_status()
