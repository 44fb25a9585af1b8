"""Embedding and reranking by the models of a gateway: ordinary requests, and a search that does without them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
from sqlalchemy import select

from kvarn.config.retrieval import RetrievalConfig
from kvarn.replica.client.protocol import ReplicaState
from kvarn.retrieval.build import make_retriever
from kvarn.retrieval.search import Retriever
from kvarn.retrieval.served_model import Breakers
from kvarn.retrieval.types import EmbedderAwayError, SearchResult
from kvarn.store.models import UsageEvent
from kvarn.store.owner import Principal, Scopes
from kvarn.text.checkpoint import SMALL_EMBEDDER
from kvarn.wire.openai.errors import ApiError
from retrieval_world import chunks_of

ResultT = TypeVar("ResultT")
TEXTS = ["aaaa", "abab", "zzzz"]


@dataclass
class Searches:
    """A retriever over the gateway's models, for a tenant of the test's own."""

    server: Any
    retriever: Retriever
    principal: Principal
    store_id: str

    def do(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        found: ResultT = self.server.do(work)
        return found

    def embed(self, texts: list[str], **arguments: Any) -> tuple[str, Any]:
        async def run() -> tuple[str, Any]:
            embedder = await self.retriever.embedders.current(self.principal)
            assert embedder is not None
            return embedder.identity, await embedder.embed(self.principal, texts, **arguments)

        return self.do(run())

    def fill(self, texts: list[str] = TEXTS) -> None:
        async def run() -> None:
            owner = self.principal.owner
            await self.retriever.put_file(owner, self.store_id, "file-1", filename="a.txt", attributes={})
            embedder = await self.retriever.embedders.current(self.principal)
            assert embedder is not None
            chunks = chunks_of(texts)
            vectors = await embedder.embed(self.principal, texts)
            await self.retriever.replace_file(
                owner, self.store_id, "file-1", chunks, vectors, embedder=embedder.identity, version="1"
            )

        self.do(run())

    def search(self, query: str, **arguments: Any) -> SearchResult:
        return self.do(self.retriever.search(self.principal, [self.store_id], [query], **arguments))


@pytest.fixture
def make(server: Any, request: Any) -> Iterator[Any]:
    made: list[Retriever] = []

    def searches(**settings: Any) -> Searches:
        server.add_tenant(request.node.name, scopes=Scopes(models=("tiny",))).close()
        config = server.config.model_copy(update={"retrieval": RetrievalConfig(**settings)})
        made.append(make_retriever(config, server.gateway.store, lambda: server.gateway))
        principal = server.authenticator.principals[request.node.name]
        return Searches(server, made[-1], principal, f"vs-{principal.organization_id[-12:]}")

    yield searches
    for retriever in made:
        retriever.close()


@pytest.fixture
def searches(make: Any) -> Searches:
    found: Searches = make()
    return found


def test_the_one_served_embedding_model_embeds_for_any_key(searches: Searches) -> None:
    identity, vectors = searches.embed(["ab", "c"])
    assert identity.startswith("vec@") and len(identity) > len("vec@")
    expected = np.array([[sum(map(ord, text)) + i for i in range(4)] for text in ("ab", "c")], dtype=float)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert vectors.dtype == np.float16
    assert np.allclose(vectors, expected, atol=1e-3)


def test_a_text_longer_than_the_model_reads_is_embedded_in_parts(server: Any, searches: Searches) -> None:
    (_, vectors) = searches.embed(["x" * 100 + " " + "y" * 100, "short"])
    assert vectors.shape == (2, 4)
    assert all(len(ids) <= 64 for batch in server.embed.embedded for ids in batch)
    assert sum(len(ids) for batch in server.embed.embedded for ids in batch) >= 205


def test_usage_is_the_principals(server: Any, searches: Searches, wait_for: Any) -> None:
    searches.embed(["ab"])

    async def events() -> list[UsageEvent]:
        of = UsageEvent.organization_id == searches.principal.organization_id
        async with server.gateway.store.reading() as session:
            return list(await session.scalars(select(UsageEvent).where(of)))

    wait_for(lambda: searches.do(events()), "the event")
    assert [(each.model, each.endpoint) for each in searches.do(events())] == [("vec", "/v1/embeddings")]


def test_a_query_asked_again_is_not_embedded_again(server: Any, searches: Searches) -> None:
    searches.fill()
    first = searches.search("abab")
    embedded = len(server.embed.embedded)
    assert searches.search("abab") == first and first.degraded == ()
    assert len(server.embed.embedded) == embedded
    searches.do(searches.retriever.remove_store(searches.principal.owner, searches.store_id))
    searches.fill()
    searches.search("abab")
    assert len(server.embed.embedded) == embedded + 2  # the chunks, and the query


def test_without_its_embedder_a_search_compares_words_and_says_so(server: Any, searches: Searches) -> None:
    searches.fill()
    server.embed.state = ReplicaState.DOWN
    for _ in range(3):
        found = searches.search("zzzz")
        assert [hit.chunk.text for hit in found.hits] == ["zzzz"]
        assert len(found.degraded) == 1 and "only words were compared" in found.degraded[0]
    assert "has failed" in found.degraded[0]  # it is not asked each time
    with pytest.raises(EmbedderAwayError, match="'vec'"):
        searches.embed(["ab"])


def test_a_model_that_hangs_is_not_waited_for(server: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = make(embedding_timeout_s=0.05)
    searches.fill()

    async def hang(request_id: str, inputs: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(server.embed, "embed", hang)
    assert "did not answer within 0.05 s" in searches.search("zzzz").degraded[0]


async def test_a_timeout_of_a_model_that_may_take_any_time_is_told_too() -> None:
    with pytest.raises(EmbedderAwayError, match="'vec' did not answer in time"):
        async with Breakers("embedding model", EmbedderAwayError).asking("vec", None):
            raise TimeoutError


def test_another_version_of_the_embedder_is_not_asked(searches: Searches) -> None:
    owner, store_id = searches.principal.owner, searches.store_id

    async def add() -> None:
        await searches.retriever.put_file(owner, store_id, "file-1", filename="a", attributes={})
        vectors = np.eye(3, 4, dtype=np.float16)
        await searches.retriever.replace_file(
            owner, store_id, "file-1", chunks_of(TEXTS), vectors, embedder="vec@other", version="1"
        )

    searches.do(add())
    found = searches.search("zzzz")
    assert "they are of vec@other, and vec@" in found.degraded[0]
    assert [hit.chunk.text for hit in found.hits] == ["zzzz"]


def test_a_cross_encoder_reranks(server: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = make(reranker="vec")
    searches.fill(["ab cd", "ab ab ab", "zz ab"])
    plain = searches.search("ab", ranker="none")
    monkeypatch.setattr(server.embed, "card", msgspec.structs.replace(server.embed.card, kind="score"))

    async def last_is_best(request_id: str, inputs: list[list[int]]) -> list[bytes]:
        return [np.array([10.0 if b"zz" in bytes(each) else -10.0], "<f4").tobytes() for each in inputs]

    monkeypatch.setattr(server.embed, "embed", last_is_best)
    found = searches.search("ab")
    assert plain.hits[0].chunk.text != "zz ab" and found.hits[0].chunk.text == "zz ab"
    assert found.hits[0].score > 0.51 > found.hits[1].score
    assert [hit.chunk.text for hit in searches.search("ab", score_threshold=0.51).hits] == ["zz ab"]
    searches.search("ab " * 100)  # a query longer than the model reads is cut


def test_without_its_reranker_results_stay_as_they_were_fused(server: Any, make: Any) -> None:
    searches = make(reranker="tiny")  # a model that does not rank
    searches.fill()
    plain, found = searches.search("zzzz", ranker="none"), searches.search("zzzz", ranker="default-2024-11-15")
    assert found.hits == plain.hits and plain.degraded == ()
    assert "not reranked" in found.degraded[0]


def test_a_ranker_that_is_not_served_is_refused_by_name(searches: Searches) -> None:
    with pytest.raises(ApiError, match="'nobody' is no ranker") as caught:
        searches.search("zzzz", ranker="nobody")
    assert (caught.value.status, caught.value.param) == (400, "ranking_options.ranker")


def test_a_key_names_only_models_that_it_may_use(searches: Searches) -> None:
    for name, status in (("vec", 403), ("nobody", 404)):
        with pytest.raises(ApiError) as caught:
            searches.retriever.embedders.check(searches.principal, name)
        assert caught.value.status == status
    searches.retriever.embedders.check(searches.principal, "tiny")
    with pytest.raises(ApiError) as caught:
        searches.search("zzzz", ranker="vec")
    assert caught.value.status == 403


def test_a_look_at_the_embedding_model_waits_for_none(
    server: Any, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedders, held = searches.retriever.embedders, server.gateway.catalog.held_requests
    (identity, _) = searches.embed(["ab"])
    found = embedders.ready(searches.principal)
    assert found is not None and found.identity == identity
    monkeypatch.setattr(held, "until_ready", lambda find: pytest.fail("a model is waited for"))
    server.embed.state = ReplicaState.DOWN
    with pytest.raises(EmbedderAwayError, match="'vec' is not ready"):
        embedders.ready(searches.principal)


def test_a_query_does_not_wait_for_the_small_model_to_start(make: Any) -> None:
    searches = make(embedding_timeout_s=0.05)

    async def start() -> None: ...

    searches.retriever.embedders._start_small = start

    async def add() -> None:
        owner = searches.principal.owner
        await searches.retriever.put_file(owner, searches.store_id, "file-1", filename="a", attributes={})
        vectors = np.eye(3, 4, dtype=np.float16)
        await searches.retriever.replace_file(
            owner, searches.store_id, "file-1", chunks_of(TEXTS), vectors, embedder=f"{SMALL_EMBEDDER}@1", version="1"
        )

    searches.do(add())
    assert "has not started within 0.05 s" in searches.search("zzzz").degraded[0]


def test_several_embedding_models_are_told_apart_by_the_configuration(make: Any) -> None:
    searches = make(embedding_model="absent")
    with pytest.raises(EmbedderAwayError, match="'absent'"):
        searches.embed(["ab"])


def test_while_models_start_none_is_chosen_and_none_is_started(
    server: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    searches = make()

    async def start() -> None:
        started.append(1)

    searches.retriever.embedders._start_small = start
    monkeypatch.setattr(server.embed, "card", None)
    with pytest.raises(EmbedderAwayError, match="still starting"):
        searches.embed(["ab"])
    assert started == []
