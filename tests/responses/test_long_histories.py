"""Long histories: what a short request may go on from, and what else runs meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from background_runs import Open, queue, state
from kvarn.responses import turns
from kvarn.responses.request import chat_request
from kvarn.store.owner import ANYBODY
from kvarn.store.repositories.conversations import conversations, histories


@pytest.fixture
def kept(open_gateway: Open) -> Iterator[Any]:
    def patient(server: Any) -> None:
        server.configure(store=server.config.store.model_copy(update={"timeout_s": 60}))

    with open_gateway(patient) as server:
        yield server


def say(number: int, parts: int = 1) -> dict[str, Any]:
    content = [{"type": "input_text", "text": "hi"}] * parts
    return {"id": f"msg_{number}", "type": "message", "status": "completed", "role": "user", "content": content}


def conversation_of(server: Any, items: list[dict[str, Any]]) -> str:
    made = server.do(conversations.create_conversation(server.gateway.store, ANYBODY.owner, {}, items))
    return str(made.id)


def refusal(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_a_history_of_too_many_items_is_refused_wherever_it_is_gone_on_from(kept):
    most = histories.MAX_HISTORY_ITEMS
    long = conversation_of(kept, [say(number) for number in range(most + 1)])
    many_parts = conversation_of(kept, [say(number, parts=1024) for number in range(5)])
    full = conversation_of(kept, [say(number) for number in range(most)])
    too_large = (400, "conversation_too_large", "conversation")
    with kept.client() as client:
        for conversation in (long, many_parts, full):
            asked = {"model": "tiny", "conversation": conversation, "input": "x"}
            for changes in ({}, {"background": True}, {"stream": True}):
                assert refusal(client.post("/v1/responses", json={**asked, **changes})) == too_large
            assert refusal(client.post("/v1/responses/input_tokens", json=asked)) == too_large
        added = client.post(f"/v1/conversations/{full}/items", json={"items": [{"role": "user", "content": "x"}]})
        assert refusal(added) == (400, "conversation_too_large", "items")
        client.delete(f"/v1/conversations/{full}/items/msg_0").raise_for_status()
        counted = client.post("/v1/responses/input_tokens", json={"model": "tiny", "conversation": full, "input": "x"})
        assert counted.status_code == 200, "as many as there may be"


def test_a_chain_of_too_many_items_is_refused(kept, monkeypatch):
    monkeypatch.setattr(histories, "MAX_HISTORY_ITEMS", 5)
    with kept.client() as client:
        asked = {"model": "tiny", "input": [{"role": "user", "content": "x"}] * 2}
        first = client.post("/v1/responses", json=asked).json()["id"]
        second = client.post("/v1/responses", json={**asked, "previous_response_id": first, "input": "x"}).json()["id"]
        third = client.post("/v1/responses", json={**asked, "previous_response_id": second, "input": "x"})
        assert refusal(third) == (400, "chain_too_long", "previous_response_id")


def test_what_references_stand_for_has_the_same_bounds(kept, monkeypatch):
    conversation_of(kept, [say(number) for number in range(4)])
    references = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(4)]
    with kept.client() as client:
        made = client.post("/v1/responses", json={"model": "tiny", "input": "y" * 400}).json()
        references.append({"type": "item_reference", "id": made["output"][0]["id"]})
        asked = {"model": "tiny", "input": references}
        assert client.post("/v1/responses", json=asked).status_code == 200
        for name, most in (("ITEMS", 4), ("BYTES", 300)):
            with monkeypatch.context() as bounds:
                bounds.setattr(histories, f"MAX_HISTORY_{name}", most)
                told = refusal(client.post("/v1/responses", json=asked))
                assert told == (400, "references_too_large", "input")


@pytest.mark.parametrize("background", [False, True])
def test_what_a_history_costs_is_not_paid_on_the_event_loop(kept, monkeypatch, wait_for, background):
    """Decoding and making the chat are done in threads, however short the body is that asks for it."""
    where: dict[str, set[str]] = {"decode": set(), "chat": set()}

    def noting(name: str, work: Any) -> Any:
        def noted(*given: Any, **options: Any) -> Any:
            where[name].add(threading.current_thread().name)
            return work(*given, **options)

        return noted

    monkeypatch.setattr(turns, "decode_item", noting("decode", histories.decode_item))
    for module in ("fitting", "background"):
        users = sys.modules[f"kvarn.responses.{module}"]
        monkeypatch.setattr(users, "chat_request", noting("chat", chat_request))
    kept.served["tiny"].require_ready()
    conversation = conversation_of(kept, [say(number) for number in range(40)])
    if background:
        response_id = queue(kept, conversation=conversation)
        wait_for(lambda: state(kept, response_id)["status"] in ("completed", "failed"), "it to end")
    else:
        with kept.client() as client:
            client.post("/v1/responses", json={"model": "tiny", "input": "x", "conversation": conversation})
    assert where["decode"] and where["chat"]
    assert kept.do(_thread_name()) not in where["decode"] | where["chat"]


async def _thread_name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_items_are_read_without_a_writer_waiting(kept, monkeypatch):
    """The lock of a conversation is taken in one transaction, its items are read after it."""
    read = conversations.read_history
    written: list[str] = []

    async def read_slowly(*given: Any) -> list[str]:
        made = await asyncio.wait_for(
            conversations.create_conversation(kept.gateway.store, ANYBODY.owner, {}, []), timeout=60
        )
        written.append(made.id)
        return await read(*given)

    monkeypatch.setattr(conversations, "read_history", read_slowly)
    conversation = conversation_of(kept, [say(0)])
    with kept.client() as client:
        asked = {"model": "tiny", "input": "x", "conversation": conversation}
        assert client.post("/v1/responses", json=asked).status_code == 200
    assert written
