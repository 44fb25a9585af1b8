"""Conversations through the official client, on both databases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from sqlalchemy import update

from fake_replica import answer_text
from kvarn.config.platform import StoreConfig
from kvarn.store.models import Conversation
from kvarn.store.repositories.conversations import histories


@pytest.fixture
def kept(serve: Any, database_url: str, wait_for: Any) -> Iterator[Any]:
    """A gateway of its own on each database."""

    def prepare(server: Any) -> None:
        server.config = server.config.model_copy(update={"store": StoreConfig(url=database_url)})

    with serve(prepare) as server:
        yield server


@pytest.fixture
def sdk(kept: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{kept.url}/v1", api_key="none", max_retries=0, timeout=20) as made:
        yield made


def texts(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


def say(text: str, role: str = "user") -> Any:
    return {"role": role, "content": text}


def prompt_of(server: Any) -> str:
    submitted = server.chat.submitted[-1].prompt_token_ids
    return str(server.served["tiny"].text.tokenizer.decode(submitted, skip_special_tokens=False))


def test_a_conversation_is_made_read_changed_and_deleted(sdk: openai.OpenAI) -> None:
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
        sdk.conversations.items.retrieve(items[0].id, conversation_id=made.id)  # type: ignore[arg-type]


def test_items_are_added_listed_in_pages_read_and_deleted(sdk: openai.OpenAI) -> None:
    made = sdk.conversations.create()
    for first in range(0, 40, 20):
        added = sdk.conversations.items.create(made.id, items=[say(str(first + i)) for i in range(20)])
        assert texts(added.data) == [str(first + i) for i in range(20)]
    assert texts(sdk.conversations.items.list(made.id).data) == [str(i) for i in range(39, 19, -1)]
    assert texts(sdk.conversations.items.list(made.id, limit=7, order="asc")) == [str(i) for i in range(40)]
    page = sdk.conversations.items.list(made.id, limit=3, order="asc", include=["message.output_text.logprobs"])
    assert page.has_more and texts(page.data) == ["0", "1", "2"]
    second = page.data[1]
    assert sdk.conversations.items.retrieve(second.id, conversation_id=made.id) == second  # type: ignore[arg-type]
    assert sdk.conversations.items.delete(second.id, conversation_id=made.id).id == made.id  # type: ignore[arg-type]
    assert texts(sdk.conversations.items.list(made.id, limit=2, order="asc").data) == ["0", "2"]
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.items.delete(second.id, conversation_id=made.id)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [say("x")] * 21}, "items"),
        (
            {"items": [{"type": "message", "role": "user", "content": [{"type": "input_file"}]}]},
            "items[0].content[0].type",
        ),
        ({"items": [{"type": "mcp_call"}]}, "items[0].type"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_a_conversation_cannot_hold_is_refused_by_name(kept: Any, body: dict[str, Any], param: str) -> None:
    with kept.client() as client:
        answer = client.post("/v1/conversations", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_id_can_be_in_a_conversation_once(sdk: openai.OpenAI) -> None:
    made = sdk.conversations.create(items=[{**say("x"), "id": "msg_own"}])
    with pytest.raises(openai.ConflictError):
        sdk.conversations.items.create(made.id, items=[{**say("y"), "id": "msg_own"}])
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(model="tiny", input=[{**say("y"), "id": "msg_own"}], conversation=made.id)
    assert refusal.value.param == "input[0].id"
    other = sdk.conversations.create(items=[{"type": "item_reference", "id": "msg_own"}])
    assert texts(sdk.conversations.items.list(other.id).data) == ["x"]


def test_a_conversation_grows_with_every_response(kept: Any, sdk: openai.OpenAI) -> None:
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


def test_one_response_at_a_time_is_made_in_a_conversation(kept: Any, sdk: openai.OpenAI, wait_for: Any) -> None:
    made = sdk.conversations.create()
    kept.chat.hold = kept.do(_event())
    results: list[Any] = []

    def ask() -> None:
        results.append(sdk.responses.create(model="tiny", input="first", conversation=made.id))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: len(kept.chat.running) == 1, "the first to run")
    with pytest.raises(openai.ConflictError) as conflict:
        sdk.responses.create(model="tiny", input="second", conversation=made.id)
    assert (conflict.value.code, conflict.value.param) == ("conversation_locked", "conversation")
    with pytest.raises(openai.ConflictError):
        sdk.conversations.items.create(made.id, items=[say("x")])
    assert sdk.conversations.items.list(made.id).data == []
    kept.loop.call_soon_threadsafe(kept.chat.hold.set)
    thread.join(20)
    assert results[0].status == "completed"
    sdk.responses.create(model="tiny", input="third", conversation=made.id)
    assert texts(sdk.conversations.items.list(made.id, order="asc"))[::2] == ["first", "third"]


def test_a_turn_that_does_not_end_leaves_the_conversation_as_it_was_and_free(
    kept: Any, sdk: openai.OpenAI, wait_for: Any
) -> None:
    made = sdk.conversations.create()
    kept.chat.lose_after = 3
    with pytest.raises(openai.InternalServerError):
        sdk.responses.create(model="tiny", input="x", conversation=made.id)
    events = list(sdk.responses.create(model="tiny", input="x", conversation=made.id, stream=True))
    assert events[-1].type == "response.failed"
    kept.chat.lose_after = None
    with pytest.raises(openai.BadRequestError):
        sdk.responses.create(model="tiny", input="x" * 600, conversation=made.id)
    kept.chat.hold = kept.do(_event())
    leaving = sdk.with_options(timeout=1.5)
    with pytest.raises(openai.APITimeoutError):
        leaving.responses.create(model="tiny", input="x", conversation=made.id)
    wait_for(lambda: not kept.chat.running, "the abandoned request to be aborted")
    kept.chat.hold = None
    wait_for(lambda: _succeeds(sdk, made.id), "the conversation to be free")
    assert len(sdk.conversations.items.list(made.id).data) == 2


def test_a_conversation_deleted_meanwhile_stays_deleted(kept: Any, sdk: openai.OpenAI, wait_for: Any) -> None:
    made = sdk.conversations.create()
    kept.chat.hold = kept.do(_event())
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(sdk.responses.create(model="tiny", input="x", conversation=made.id))
    )
    thread.start()
    wait_for(lambda: len(kept.chat.running) == 1, "the response to run")
    sdk.conversations.delete(made.id)
    kept.loop.call_soon_threadsafe(kept.chat.hold.set)
    thread.join(20)
    assert results[0].status == "completed" and sdk.responses.retrieve(results[0].id).id == results[0].id
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.retrieve(made.id)


def test_what_is_too_much_to_read_is_refused_and_what_is_not_goes_on(
    kept: Any, sdk: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_response_that_lost_its_hold_adds_nothing_and_says_so(
    kept: Any, sdk: openai.OpenAI, wait_for: Any, background: bool
) -> None:
    made = sdk.conversations.create()
    kept.chat.hold = kept.do(_event())
    streams: list[Any] = []

    def ask() -> None:
        asked = {"input": "slow", "conversation": made.id, "stream": True, "background": background}
        streams.append(list(sdk.responses.create(model="tiny", **asked)))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: len(kept.chat.running) == 1, "the response to run")
    kept.do(_let_the_hold_run_out(kept))
    sdk.conversations.items.create(made.id, items=[say("meanwhile")])
    kept.loop.call_soon_threadsafe(kept.chat.hold.set)
    thread.join(20)
    last = streams[0][-1]
    assert last.type == "response.failed" and "gone on without" in last.response.error.message
    assert sdk.responses.retrieve(last.response.id).status == "failed"
    assert texts(sdk.conversations.items.list(made.id, order="asc")) == ["meanwhile"]
    sdk.responses.create(model="tiny", input="next", conversation=made.id)


async def _let_the_hold_run_out(server: Any) -> None:
    """As if the gateway had stood still for longer than the lease."""
    server.gateway.responses.locked.clear()
    async with server.gateway.store.transaction() as session:
        await session.execute(update(Conversation).values(locked_until=0))


async def _event() -> asyncio.Event:
    return asyncio.Event()


def _succeeds(sdk: openai.OpenAI, conversation_id: str) -> bool:
    try:
        sdk.responses.create(model="tiny", input="x", conversation=conversation_id)
    except openai.ConflictError:
        return False
    return True
