"""Stored chat completions: kept when asked for, read, listed, changed and deleted by their owner alone."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from kvarn.store.errors import StoreAwayError

PATH = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Hej"}]


@pytest.fixture
def tenant(server: Any) -> Any:
    with server.add_tenant(f"tenant-{time.monotonic_ns()}") as made:
        yield made


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.post(PATH, json={"model": "tiny", "messages": HELLO, **fields}).json()
    return answer


def test_an_answer_is_kept_only_where_asked_for(tenant):
    kept, dropped = ask(tenant, store=True, metadata={"a": "b"}), ask(tenant)
    read = tenant.get(f"{PATH}/{kept['id']}").json()
    assert read.items() >= {name: kept[name] for name in ("id", "created", "model", "choices", "usage")}.items()
    assert read["metadata"] == kept["metadata"] == {"a": "b"}
    assert tenant.get(f"{PATH}/{dropped['id']}").status_code == 404
    assert [each["id"] for each in tenant.get(PATH).json()["data"]] == [kept["id"]]


def test_a_streamed_answer_is_there_when_its_last_chunk_is(server, answering, sdk):
    answering("ett", "två")
    for chunk in sdk.chat.completions.create(model="tiny", messages=HELLO, n=2, store=True, stream=True):
        last = chunk
    kept = sdk.chat.completions.retrieve(last.id)
    assert [choice.message.content for choice in kept.choices] == ["ett", "två"]
    assert kept.usage is not None and kept.usage.completion_tokens == 4 + 5
    sdk.chat.completions.delete(last.id)


def test_the_messages_it_answers_can_be_read(tenant):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts, "name": "Eva"}]
    kept = ask(tenant, store=True, messages=messages)
    listed = tenant.get(f"{PATH}/{kept['id']}/messages").json()
    assert [each["role"] for each in listed["data"]] == ["system", "user"]
    assert listed["data"][0]["content"] == "Be brief." and listed["data"][0]["content_parts"] is None
    assert listed["data"][1]["content_parts"] == parts and listed["data"][1]["name"] == "Eva"
    page = tenant.get(f"{PATH}/{kept['id']}/messages", params={"limit": 1, "after": listed["first_id"]}).json()
    assert page["data"] == listed["data"][1:] and not page["has_more"]


def test_lists_are_paged_ordered_and_filtered(tenant):
    kept = [
        ask(tenant, store=True, metadata={"k": str(number % 2), 'odd "key" \'$.%': "x"})["id"] for number in range(4)
    ]

    def ids(**query: Any) -> list[str]:
        return [each["id"] for each in tenant.get(PATH, params=query).json()["data"]]

    everything = ids()
    assert sorted(everything) == sorted(kept) and ids(order="desc") == everything[::-1]
    assert ids(limit=2) + ids(limit=2, after=everything[1]) == everything
    assert tenant.get(PATH, params={"limit": 2}).json()["has_more"]
    assert sorted(ids(**{"metadata[k]": "1"})) == sorted(kept[1::2])
    assert len(ids(**{"metadata[k]": "1", 'metadata[odd "key" \'$.%]': "x"})) == 2
    assert ids(**{"metadata[k]": "2"}) == ids(**{"metadata[none]": "1"}) == ids(model="vec") == []
    assert ids(model="tiny") == everything
    unknown = tenant.get(PATH, params={"colour": "red"})
    assert [each["id"] for each in unknown.json()["data"]] == everything
    assert unknown.headers["x-kvarn-warning"] == "ignored unknown query parameter 'colour'"
    assert tenant.get(PATH, params={"after": "chatcmpl-x"}).status_code == 404
    assert tenant.get(f"{PATH}/%00").status_code == 400


def test_metadata_can_be_changed_and_the_rest_deleted(tenant):
    kept = ask(tenant, store=True, metadata={"a": "b"})["id"]
    changed = tenant.post(f"{PATH}/{kept}", json={"metadata": {"c": "d"}}).json()
    assert changed["id"] == kept and changed["metadata"] == {"c": "d"}
    assert tenant.get(f"{PATH}/{kept}").json() == changed
    assert tenant.post(f"{PATH}/{kept}", json={"metadata": {}, "model": "x"}).json()["error"]["param"] == "model"
    assert tenant.delete(f"{PATH}/{kept}").json() == {
        "id": kept,
        "object": "chat.completion.deleted",
        "deleted": True,
    }
    assert tenant.get(f"{PATH}/{kept}").status_code == tenant.delete(f"{PATH}/{kept}").status_code == 404


def test_another_tenant_finds_nothing(server, tenant):
    kept = ask(tenant, store=True)["id"]
    with server.add_tenant("stranger") as stranger:
        for answer in (
            stranger.get(f"{PATH}/{kept}"),
            stranger.get(f"{PATH}/{kept}/messages"),
            stranger.post(f"{PATH}/{kept}", json={"metadata": {}}),
            stranger.delete(f"{PATH}/{kept}"),
            stranger.get(PATH, params={"after": kept}),
        ):
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
        assert stranger.get(PATH).json()["data"] == []
    assert tenant.get(f"{PATH}/{kept}").status_code == 200


def test_without_the_database_the_answer_comes_with_a_warning(server, answering, client, monkeypatch):
    def away(*_: object) -> None:
        raise StoreAwayError("the database is away")

    monkeypatch.setattr(server.gateway.store, "transaction", away)
    answering("hej")
    answer = ask(client, store=True)
    assert answer["choices"][0]["message"]["content"] == "hej" and "could not be stored" in answer["warnings"][0]
    assert (
        "could not be stored"
        in client.post(PATH, json={"model": "tiny", "messages": HELLO, "store": True, "stream": True}).text
    )


def test_what_a_model_writes_can_be_stored_whatever_it_is(server, tenant, answering):
    answering("a\x00b \\u0000 🌍")
    kept = ask(tenant, store=True, messages=[{"role": "user", "content": "\x00"}])["id"]
    read = tenant.get(f"{PATH}/{kept}").json()["choices"][0]["message"]["content"]
    assert read == "a\x00b \\u0000 🌍"
