"""Conversations through the official client, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from sqlalchemy import update

from asking import prompt_of
from background_runs import hold
from fake_replica import answer_text
from kvarn.store.models import Conversation
from kvarn.store.repositories.conversations import histories
from raw_http import post_of


@pytest.fixture
def sdk(kept: Any) -> Iterator[openai.OpenAI]:
    with kept.sdk() as made:
        yield made


def texts(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


def say(text: str, role: str = "user") -> Any:
    return {"role": role, "content": text}


def test_a_conversation_is_made_read_changed_and_deleted(sdk):
    made = sdk.conversations.create(metadata={"topic": "räksmörgås\0"}, items=[say("one"), say("two", "assistant")])
    assert made.id.startswith("conv_") and made.metadata == {"topic": "räksmörgås\0"}
    assert sdk.conversations.retrieve(made.id) == made
    assert sdk.conversations.update(made.id, metadata={"b": "c"}).metadata == {"b": "c"}
    items = sdk.conversations.items.list(made.id, order="asc").data
    assert texts(items) == ["one", "two"]
    assert sdk.conversations.delete(made.id).deleted
    for ask in (sdk.conversations.retrieve, sdk.conversations.delete, sdk.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.items.retrieve(items[0].id, conversation_id=made.id)


def test_items_are_added_listed_in_pages_read_and_deleted(sdk):
    made = sdk.conversations.create()
    for first in range(0, 40, 20):
        added = sdk.conversations.items.create(made.id, items=[say(str(first + i)) for i in range(20)])
        assert texts(added.data) == [str(first + i) for i in range(20)]
    assert texts(sdk.conversations.items.list(made.id).data) == [str(i) for i in range(39, 19, -1)]
    assert texts(sdk.conversations.items.list(made.id, limit=7, order="asc")) == [str(i) for i in range(40)]
    page = sdk.conversations.items.list(made.id, limit=3, order="asc", include=["message.output_text.logprobs"])
    assert page.has_more and texts(page.data) == ["0", "1", "2"]
    second = page.data[1]
    assert sdk.conversations.items.retrieve(second.id, conversation_id=made.id) == second
    assert sdk.conversations.items.delete(second.id, conversation_id=made.id).id == made.id
    assert texts(sdk.conversations.items.list(made.id, limit=2, order="asc").data) == ["0", "2"]
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.items.delete(second.id, conversation_id=made.id)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [say("x")] * 21}, "items"),
        (
            {"items": [{"type": "message", "role": "user", "content": [{"type": "input_file"}]}]},
            "items[0].content[0].type",
        ),
        ({"items": [{"type": "computer_call"}]}, "items[0].type"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_a_conversation_cannot_hold_is_refused_by_name(kept, body, param):
    with kept.client() as client:
        answer = client.post("/v1/conversations", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_id_can_be_in_a_conversation_once(sdk):
    made = sdk.conversations.create(items=[{**say("x"), "id": "msg_own"}])
    with pytest.raises(openai.ConflictError):
        sdk.conversations.items.create(made.id, items=[{**say("y"), "id": "msg_own"}])
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(model="tiny", input=[{**say("y"), "id": "msg_own"}], conversation=made.id)
    assert refusal.value.param == "input[0].id"
    other = sdk.conversations.create(items=[{"type": "item_reference", "id": "msg_own"}])
    assert texts(sdk.conversations.items.list(other.id).data) == ["x"]


def test_a_conversation_grows_with_every_response(kept, sdk):
    made = sdk.conversations.create(items=[say("Be brief.", "system")])
    for number in (1, 2):
        kept.chat.answer = lambda request, index, number=number: answer_text(f"answer {number}")
        response = sdk.responses.create(model="tiny", input=f"question {number}", conversation={"id": made.id})
        assert response.conversation is not None and response.conversation.id == made.id
    said = ["Be brief.", "question 1", "answer 1", "question 2", "answer 2"]
    assert texts(sdk.conversations.items.list(made.id, order="asc")) == said
    assert prompt_of(kept) == (
        "<bos><|system|>Be brief.<|user|>question 1<|assistant|>answer 1<|user|>question 2<|assistant|>"
    )
    # What is not stored as a response is a turn all the same, and a deleted response leaves its turn.
    sdk.responses.create(model="tiny", input="question 3", conversation=made.id, store=False)
    sdk.responses.delete(response.id)
    assert len(sdk.conversations.items.list(made.id).data) == 7


def test_one_response_at_a_time_is_made_in_a_conversation(kept, sdk, wait_for):
    made = sdk.conversations.create()
    go_on = hold(kept)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(sdk.responses.create, model="tiny", input="first", conversation=made.id)
        wait_for(lambda: len(kept.chat.running) == 1, "the first to run")
        with pytest.raises(openai.ConflictError) as conflict:
            sdk.responses.create(model="tiny", input="second", conversation=made.id)
        assert (conflict.value.code, conflict.value.param) == ("conversation_locked", "conversation")
        with pytest.raises(openai.ConflictError):
            sdk.conversations.items.create(made.id, items=[say("x")])
        assert sdk.conversations.items.list(made.id).data == []
        go_on()
        assert first.result().status == "completed"
    sdk.responses.create(model="tiny", input="third", conversation=made.id)
    assert texts(sdk.conversations.items.list(made.id, order="asc"))[::2] == ["first", "third"]


def test_a_turn_that_does_not_end_leaves_the_conversation_as_it_was_and_free(kept, sdk, wait_for):
    made = sdk.conversations.create()
    kept.chat.lose_after = 3
    with pytest.raises(openai.InternalServerError):
        sdk.responses.create(model="tiny", input="x", conversation=made.id)
    events = list(sdk.responses.create(model="tiny", input="x", conversation=made.id, stream=True))
    assert events[-1].type == "response.failed"
    kept.chat.lose_after = None
    with pytest.raises(openai.BadRequestError):
        sdk.responses.create(model="tiny", input="x" * 600, conversation=made.id)
    hold(kept)
    leaving = kept.connect()
    leaving.sendall(post_of("/v1/responses", {"model": "tiny", "input": "x", "conversation": made.id}))
    wait_for(lambda: kept.chat.running, "the request to run")
    leaving.close()
    wait_for(lambda: not kept.chat.running, "the abandoned request to be aborted")
    kept.chat.hold = None
    wait_for(lambda: _succeeds(sdk, made.id), "the conversation to be free")
    assert len(sdk.conversations.items.list(made.id).data) == 2


def test_a_conversation_deleted_meanwhile_stays_deleted(kept, sdk, wait_for):
    made = sdk.conversations.create()
    go_on = hold(kept)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(sdk.responses.create, model="tiny", input="x", conversation=made.id)
        wait_for(lambda: len(kept.chat.running) == 1, "the response to run")
        sdk.conversations.delete(made.id)
        go_on()
        response = asked.result()
    assert response.status == "completed" and sdk.responses.retrieve(response.id).id == response.id
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.retrieve(made.id)


def test_what_is_too_much_to_read_is_refused_and_what_is_not_goes_on(kept, sdk, monkeypatch):
    monkeypatch.setattr(histories, "MAX_HISTORY_BYTES", 2000)
    made = sdk.conversations.create(items=[say("x" * 300)])
    first = sdk.responses.create(model="tiny", input="short", conversation=made.id)
    sdk.conversations.items.create(made.id, items=[say("y" * 2000)])
    for background in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            sdk.responses.create(model="tiny", input="short", conversation=made.id, background=background)
        assert (refused.value.code, refused.value.param) == ("conversation_too_large", "conversation")
    sdk.conversations.items.create(made.id, items=[say("it is not locked")])
    assert sdk.conversations.items.list(made.id).data, "it can still be read, page by page"
    second = sdk.responses.create(model="tiny", input="z" * 350, previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.responses.create(model="tiny", input="short", previous_response_id=second.id)
    assert refused.value.code == "chain_too_long"


@pytest.mark.parametrize("background", [False, True])
def test_a_response_that_lost_its_hold_adds_nothing_and_says_so(kept, sdk, wait_for, background):
    made = sdk.conversations.create()
    go_on = hold(kept)
    asked: dict[str, Any] = {"input": "slow", "conversation": made.id, "stream": True, "background": background}
    with ThreadPoolExecutor(1) as pool:
        events = pool.submit(lambda: list(sdk.responses.create(model="tiny", **asked)))
        wait_for(lambda: len(kept.chat.running) == 1, "the response to run")
        kept.do(_let_the_hold_run_out(kept))
        sdk.conversations.items.create(made.id, items=[say("meanwhile")])
        go_on()
        last = events.result()[-1]
    assert last.type == "response.failed" and "gone on without" in last.response.error.message
    assert sdk.responses.retrieve(last.response.id).status == "failed"
    assert texts(sdk.conversations.items.list(made.id, order="asc")) == ["meanwhile"]
    sdk.responses.create(model="tiny", input="next", conversation=made.id)


async def _let_the_hold_run_out(server: Any) -> None:
    """As if the gateway had stood still for longer than the lease."""
    server.gateway.responses.locked.clear()
    async with server.gateway.store.transaction() as session:
        await session.execute(update(Conversation).values(locked_until=0))


def _succeeds(sdk: openai.OpenAI, conversation_id: str) -> bool:
    try:
        sdk.responses.create(model="tiny", input="x", conversation=conversation_id)
    except openai.ConflictError:
        return False
    return True
