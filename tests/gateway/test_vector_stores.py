"""Vector stores as OpenAI's client uses them: made, filled, searched, changed and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from kvarn.config.platform import BatchesConfig
from kvarn.retrieval.types import SearchResult
from kvarn.store.errors import StoreReadOnlyError
from kvarn.store.owner import Role

SMALL = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50}}
APPLES = "Apples grow on trees in orchards. They are picked in autumn. " * 3
TRAINS = "# Trains\n\nTrains leave from platform nine. A ticket costs three crowns.\n"


@pytest.fixture(scope="module")
def filled(serve: Any) -> Iterator[Any]:
    """A gateway that looks for files to ingest often."""
    with serve(config={"batches": BatchesConfig(poll_s=0.05)}) as server:
        yield server


@pytest.fixture
def sdk(filled: Any) -> Iterator[openai.OpenAI]:
    with filled.sdk() as made:
        yield made


def upload(sdk: openai.OpenAI, content: str | bytes = APPLES, name: str = "apples.txt") -> str:
    content = content.encode() if isinstance(content, str) else content
    return sdk.files.create(file=(name, content), purpose="assistants").id


def test_a_store_is_made_retrieved_changed_listed_and_deleted(sdk):
    made = sdk.vector_stores.create(
        name="docs", description="Ours", metadata={"a": "b"}, expires_after={"anchor": "last_active_at", "days": 7}
    )
    assert (made.name, made.metadata, made.status, made.usage_bytes) == ("docs", {"a": "b"}, "completed", 0)
    assert made.expires_at == made.last_active_at + 7 * 24 * 3600 and made.file_counts.total == 0
    assert sdk.vector_stores.retrieve(made.id) == made
    changed = sdk.vector_stores.update(made.id, name="more", metadata=None, expires_after=None)
    assert (changed.name, changed.metadata, changed.expires_at) == ("more", {}, None)
    others = [sdk.vector_stores.create().id for _ in range(2)]
    assert [each.id for each in sdk.vector_stores.list(limit=2)][:3] == [*reversed(others), made.id]
    assert [each.id for each in sdk.vector_stores.list(before=made.id, order="desc", limit=1).data] == [others[0]]
    deleted = sdk.vector_stores.delete(made.id)
    assert deleted.deleted and deleted.object == "vector_store.deleted"
    with pytest.raises(openai.NotFoundError):
        sdk.vector_stores.retrieve(made.id)


def test_files_are_ingested_and_found(sdk):
    made = sdk.vector_stores.create(name="fruit")
    file = sdk.vector_stores.files.upload_and_poll(
        vector_store_id=made.id, file=("trains.md", TRAINS.encode()), attributes={"kind": "rail", "year": 2026}
    )
    assert (file.status, file.last_error, file.vector_store_id) == ("completed", None, made.id)
    assert file.chunking_strategy.static.max_chunk_size_tokens == 800 and file.usage_bytes > len(TRAINS)
    apples = sdk.vector_stores.files.create_and_poll(
        upload(sdk), vector_store_id=made.id, chunking_strategy=SMALL, poll_interval_ms=50
    )
    store = sdk.vector_stores.retrieve(made.id)
    assert (store.file_counts.completed, store.file_counts.total) == (2, 2)
    listed = {each.filename: each.passages for each in sdk.vector_stores.files.list(made.id)}
    assert listed["trains.md"] == 1 and sum(listed.values()) == store.passages > 2
    assert sdk.vector_stores.files.retrieve(apples.id, vector_store_id=made.id).passages == listed["apples.txt"]
    found = sdk.vector_stores.search(made.id, query="ticket for trains")
    assert found.object == "vector_store.search_results.page" and found.data[0].filename == "trains.md"
    assert (
        found.data[0].attributes == {"kind": "rail", "year": 2026} and "three crowns" in found.data[0].content[0].text
    )
    only = {"filters": {"type": "eq", "key": "kind", "value": "rail"}, "max_num_results": 5}
    assert {hit.file_id for hit in sdk.vector_stores.search(made.id, query=["apples", "trees"], **only)} == {file.id}
    text = sdk.vector_stores.files.content(apples.id, vector_store_id=made.id).data
    assert len(text) > 1 and "".join(each.text for each in text).replace(" ", "") == APPLES.replace(" ", "")
    sdk.vector_stores.files.update(apples.id, vector_store_id=made.id, attributes={"kind": "rail"})
    assert len({hit.file_id for hit in sdk.vector_stores.search(made.id, query=["apples"], **only)}) == 2
    assert sdk.vector_stores.files.delete(file.id, vector_store_id=made.id).deleted
    assert {hit.file_id for hit in sdk.vector_stores.search(made.id, query="trains")} <= {apples.id}
    assert sdk.files.retrieve(file.id).id == file.id
    sdk.files.delete(apples.id)
    assert not sdk.vector_stores.files.list(made.id).data and not sdk.vector_stores.search(made.id, query="apples").data


def test_a_search_that_is_explained_tells_places_scores_and_what_was_left_out(sdk):
    made = sdk.vector_stores.create()
    sdk.vector_stores.files.upload_and_poll(vector_store_id=made.id, file=("trains.md", TRAINS.encode()))
    asked = {"query": "ticket for trains", "extra_body": {"explain": True}}
    page = sdk.vector_stores.search(made.id, **asked)
    (hit,) = page.data
    place, text = hit.place, hit.content[0].text
    assert (place["page"], place["section"], TRAINS[place["start"] : place["end"]]) == (None, "", text)
    scores = hit.scores
    assert scores["words"] > 0 and 0 < scores["vectors"] <= 1
    assert (scores["fusion"], scores["reranker"], page.degraded) == (1.0, None, [])
    assert sdk.vector_stores.retrieve(made.id).embedded_by.startswith("vec")
    assert not hasattr(sdk.vector_stores.search(made.id, query="trains").data[0], "scores")


def test_a_batch_adds_files_with_what_holds_for_each(sdk):
    made = sdk.vector_stores.create(file_ids=[upload(sdk)])
    batch = sdk.vector_stores.file_batches.upload_and_poll(
        made.id, files=[("a.txt", b"first"), ("b.txt", b"second")], file_ids=[upload(sdk)]
    )
    assert (batch.status, batch.file_counts.completed) == ("completed", 3)
    files = [{"file_id": upload(sdk), "attributes": {"n": n}, "chunking_strategy": SMALL} for n in range(2)]
    own = sdk.vector_stores.file_batches.create_and_poll(made.id, files=files, poll_interval_ms=50)
    listed = sdk.vector_stores.file_batches.list_files(own.id, vector_store_id=made.id, filter="completed", order="asc")
    assert sorted(each.attributes["n"] for each in listed) == [0, 1]
    assert len(list(sdk.vector_stores.files.list(made.id, limit=2))) == 6
    retrieved = sdk.vector_stores.file_batches.retrieve(own.id, vector_store_id=made.id)
    assert retrieved == own == sdk.vector_stores.file_batches.cancel(own.id, vector_store_id=made.id)


def test_a_file_that_cannot_be_read_says_why(sdk):
    made = sdk.vector_stores.create()
    file = sdk.vector_stores.files.create_and_poll(
        upload(sdk, b"\x7fELF\x00\x01", "program.bin"), vector_store_id=made.id, poll_interval_ms=50
    )
    assert file.status == "failed" and file.last_error.code == "unsupported_file" and file.last_error.message
    assert sdk.vector_stores.retrieve(made.id).file_counts.failed == 1
    batch = sdk.vector_stores.file_batches.create_and_poll(made.id, file_ids=[file.id], poll_interval_ms=50)
    assert batch.status == "failed"


def test_only_readers_find_a_file_and_read_its_text(filled):
    sam = filled.add_tenant("readers", user_id="user-sam", role=Role.MEMBER)
    principal = filled.authenticator.principals["readers"]
    filled.authenticator.principals["eve"] = type(principal)(principal.owner, Role.SERVICE, "user-eve")
    with sam, filled.sdk("readers") as sdk, filled.sdk("eve") as eve:
        made = sdk.vector_stores.create()
        secret = sdk.vector_stores.files.create(
            made.id, file_id=upload(sdk, TRAINS, "s.md"), extra_body={"readers": ["user-sam"]}
        )
        sdk.vector_stores.files.poll(secret.id, vector_store_id=made.id, poll_interval_ms=50)
        assert sdk.vector_stores.search(made.id, query="trains").data
        assert not eve.vector_stores.search(made.id, query="trains").data
        with pytest.raises(openai.NotFoundError):
            eve.vector_stores.files.content(secret.id, vector_store_id=made.id)
        body = {"readers": ["role:service"]}
        changed = sam.post(f"/v1/vector_stores/{made.id}/files/{secret.id}", json=body).json()
        assert changed["readers"] == ["role:service"]
        assert eve.vector_stores.search(made.id, query="trains").data
        assert not sdk.vector_stores.search(made.id, query="trains").data


WRONG = [
    ("", {"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after.anchor"),
    ("", {"expires_after": {"anchor": "last_active_at", "days": 400}}, "expires_after.days"),
    ("", {"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ("", {"nme": "x"}, "nme"),
    ("/S/files", {}, "file_id"),
    ("/S/files", {"file_id": "f", "attributes": {"a": [1]}}, "attributes.a"),
    ("/S/files", {"file_id": "f", "attributes": {str(n): n for n in range(17)}}, "attributes"),
    ("/S/files", {"file_id": "f", "chunking_strategy": {"type": "other"}}, "chunking_strategy.type"),
    (
        "/S/files",
        {
            "file_id": "f",
            "chunking_strategy": {
                "type": "static",
                "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51},
            },
        },
        "static",
    ),
    ("/S/files/F", {}, "attributes"),
    ("/S/files/F", {"readers": ["user-a", "role:admins"]}, "readers[1]"),
    ("/S/file_batches", {}, "file_ids"),
    ("/S/file_batches", {"file_ids": ["f"], "files": [{"file_id": "f"}]}, "file_ids"),
    ("/S/search", {}, "query"),
    ("/S/search", {"query": "x", "max_num_results": 51}, "max_num_results"),
    ("/S/search", {"query": "x", "filters": {"type": "like", "key": "a", "value": 1}}, "filters.type"),
    ("/S/search", {"query": "x", "filters": {"type": "in", "key": "a", "value": 1}}, "value"),
    ("/S/search", {"query": "x", "ranking_options": {"ranker": "unknown"}}, "ranking_options.ranker"),
    ("/S/search", {"query": "x", "ranking_options": {"score_threshold": 2}}, "ranking_options.score_threshold"),
]


def nested(depth: int) -> dict[str, Any]:
    one = {"type": "eq", "key": "a", "value": 1}
    return one if not depth else {"type": "and", "filters": [nested(depth - 1)]}


@pytest.mark.parametrize(
    ("path", "body", "param"), [*WRONG, ("/S/search", {"query": "x", "filters": nested(9)}, "filters")]
)
def test_wrong_requests_name_the_field(filled, sdk, path, body, param):
    path = path.replace("S", sdk.vector_stores.create().id).replace("F", "file-x")
    with filled.client() as client:
        answer = client.post(f"/v1/vector_stores{path}", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_an_unknown_embedding_model_is_named_by_its_field(filled):
    with filled.client() as client:
        error = client.post("/v1/vector_stores", json={"embedding_model": "none"}).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "embedding_model")


def test_what_is_not_there_is_a_404(filled, sdk):
    made, file = sdk.vector_stores.create(), upload(sdk)
    files = f"/v1/vector_stores/{made.id}/files"
    with filled.client() as client:
        missing = [
            client.post(files, json={"file_id": "file-unknown"}),
            client.get(f"{files}/{file}"),
            client.get(f"{files}/{file}/content"),
            client.get(f"/v1/vector_stores/{made.id}/file_batches/vsfb_x"),
            client.post("/v1/vector_stores/vs_x/search", json={"query": "x"}),
            client.get("/v1/vector_stores/vs_x/files"),
        ]
    assert [answer.status_code for answer in missing] == [404] * len(missing)
    assert {answer.json()["error"]["code"] for answer in missing} == {"not_found"}


def test_what_a_search_left_out_is_told_in_a_header(filled, sdk, monkeypatch):
    async def search(*_: Any, **__: Any) -> SearchResult:
        return SearchResult((), ("No vectors: the server said\r\nx-evil: é" + "x" * 999,))

    made = sdk.vector_stores.create()
    monkeypatch.setattr(type(filled.gateway.retrieval.index), "search", search)
    with filled.client() as client:
        answer = client.post(f"/v1/vector_stores/{made.id}/search", json={"query": "x"})
    told = answer.headers["x-kvarn-warning"]
    assert answer.status_code == 200 and told.startswith("No vectors: the server said x-evil: ?x")
    assert len(told) == 300 and "x-evil" not in answer.headers


def test_a_database_that_takes_no_writes_is_searched(sdk, monkeypatch):
    async def refuse(*_: Any) -> None:
        raise StoreReadOnlyError("it is a standby")

    made = sdk.vector_stores.create()
    sdk.vector_stores.files.upload_and_poll(vector_store_id=made.id, file=("t.md", TRAINS.encode()))
    monkeypatch.setattr("kvarn.store.repositories.vector_stores.stores.note_use", refuse)
    assert sdk.vector_stores.search(made.id, query="trains").data


def test_an_expired_store_says_so_until_it_is_deleted(filled, sdk, monkeypatch):
    made = sdk.vector_stores.create(expires_after={"anchor": "last_active_at", "days": 1})
    later = filled.gateway.store.now() + 2 * 24 * 3600
    monkeypatch.setattr(filled.gateway.store, "now", lambda: later)
    assert sdk.vector_stores.retrieve(made.id).status == "expired"
    for ask in (
        lambda: sdk.vector_stores.search(made.id, query="x"),
        lambda: sdk.vector_stores.files.create(made.id, file_id="file-x"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask()
        assert refused.value.code == "vector_store_expired"


def test_the_asynchronous_client_works_too(filled):
    async def use() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{filled.url}/v1", api_key="none", max_retries=0) as sdk:
            made = await sdk.vector_stores.create()
            await sdk.vector_stores.files.upload_and_poll(
                vector_store_id=made.id, file=("t.md", TRAINS.encode()), poll_interval_ms=50
            )
            return [hit async for hit in sdk.vector_stores.search(made.id, query="trains")]

    assert asyncio.run(use())[0].filename == "t.md"
