"""Embedding of chunks and queries by served models."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from kvarn.answers.context import ServingContext
from kvarn.answers.encoders.operation import start_embedding
from kvarn.answers.record import RequestRecord
from kvarn.catalog.models import ReadyModel
from kvarn.config.retrieval import RetrievalConfig
from kvarn.retrieval.index.arrays import Array
from kvarn.retrieval.served_model import Breakers, ModelsByKind, own_record, own_request
from kvarn.retrieval.types import Embedder, EmbedderAwayError, Vectors
from kvarn.store.owner import Owner, Principal
from kvarn.text.checkpoint import SMALL_EMBEDDER
from kvarn.text.errors import TokenizerError
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.openai.encoders import EmbeddingRequest
from kvarn.wire.openai.errors import ApiError

_ENDPOINT = "/v1/embeddings"
_AT_ONCE = 64
"""Texts of one request: a request of the batch tier that is preempted has little to do again."""
_START_S, _LOOK_AGAIN_S = 60.0, 0.1
StartModel = Callable[[], Awaitable[None]]


class Embedders:
    """The embedders there are. `start_small`: has the small model served; None: it cannot be."""

    def __init__(
        self, serving: Callable[[], ServingContext], config: RetrievalConfig, start_small: StartModel | None = None
    ) -> None:
        self._serving = serving
        self._config = config
        self._start_small = start_small
        self._kinds = ModelsByKind(serving)
        self._breakers = Breakers("embedding model", EmbedderAwayError)
        self._queries = QueryVectors(config.cached_queries)

    def check(self, principal: Principal, model: str) -> None:
        """Check that a client may name this model. Raises `ApiError`: 404, there is none; 403, its key may not use
        it."""
        serving = self._serving()
        if model != SMALL_EMBEDDER or serving.models.named(model) is not None or self._start_small is None:
            serving.catalog.find(RequestRecord("", principal=principal), model)

    async def current(self, principal: Principal, model: str | None = None) -> Embedder | None:
        """The embedder that new chunks go through; `model`: the one that their store asks for. The small model is
        started where it is needed. None: there is none. Raises `EmbedderAwayError`."""
        name = self._name(model)
        return None if name is None else await self._open(principal, name, _START_S)

    def ready(self, principal: Principal, model: str | None = None) -> Embedder | None:
        """The embedder as `current` gives it, if it is ready now. Nothing is started, and no model that is scaled down
        to none is woken. None: there is none. Raises `EmbedderAwayError`."""
        name = self._name(model)
        if name is None:
            return None
        try:
            found = self._serving().catalog.ready(own_record(principal, _ENDPOINT, deferred=True), name, "embed")
        except ApiError as error:
            raise EmbedderAwayError(f"the embedding model {name!r} is not ready: {error.message}") from error
        return self._served(found)

    async def embed_queries(self, principal: Principal, identity: str, queries: Sequence[str]) -> Array:
        """Vectors [queries, d] in float32 by the embedder of that identity, remembered ones included. Raises
        `EmbedderAwayError`: it does not answer, or another version of it does."""
        owner = principal.owner
        found = {query: self._queries.get(owner, identity, query) for query in queries}
        missing = [query for query, vector in found.items() if vector is None]
        if missing:
            embedder = await self._open(principal, identity.rpartition("@")[0], self._config.embedding_timeout_s)
            if embedder.identity != identity:
                raise EmbedderAwayError(f"they are of {identity}, and {embedder.identity} is served")
            vectors = await embedder.embed(principal, missing, query=True)
            for query, vector in zip(missing, vectors, strict=True):
                found[query] = vector
                self._queries.put(owner, identity, query, vector)
        return np.stack([np.asarray(found[query], dtype=np.float32) for query in queries])

    async def embed_question(self, principal: Principal, text: str) -> tuple[str, Array] | None:
        """The identity of the embedder that new stores get, and a text's vector in float32; None: there is none now."""
        try:
            embedder = await self.current(principal)
            if embedder is None:
                return None
            vectors = await self.embed_queries(principal, embedder.identity, [text])
        except EmbedderAwayError:
            return None
        return embedder.identity, vectors[0]

    def forget(self, owner: Owner) -> None:
        """Forget the queries of a project."""
        self._queries.forget(owner)

    def _name(self, model: str | None) -> str | None:
        return model or self._config.embedding_model or self._served_name()

    def _served_name(self) -> str | None:
        served = self._kinds.of("embed")
        if len(served) == 1:
            return served[0]
        if SMALL_EMBEDDER in served:
            return SMALL_EMBEDDER
        if served:
            names = ", ".join(sorted(served))
            raise EmbedderAwayError(
                f"several embedding models are served ({names}): name one (retrieval.embedding_model)"
            )
        if self._kinds.any_starts:
            raise EmbedderAwayError("models are still starting, and one of them may embed")
        return None if self._start_small is None else SMALL_EMBEDDER

    async def _open(self, principal: Principal, name: str, start_s: float) -> ServedEmbedder:
        """An embedder that is ready; `start_s`: seconds that the small one has to start where it is not served yet."""
        serving = self._serving()
        if name == SMALL_EMBEDDER and serving.models.named(name) is None and self._start_small is not None:
            await self._start_small()
            await self._until_served(serving, name, start_s)
        async with self._breakers.asking(name, self._config.embedding_timeout_s):
            record = own_record(principal, _ENDPOINT, deferred=True)
            return self._served(await serving.catalog.wait_for(record, name, "embed"))

    def _served(self, model: ReadyModel) -> ServedEmbedder:
        return ServedEmbedder(self._serving, self._breakers, model, self._config.embedding_timeout_s)

    async def _until_served(self, serving: ServingContext, name: str, start_s: float) -> None:
        try:
            async with asyncio.timeout(start_s):
                while serving.models.named(name) is None:  # noqa: ASYNC110  nobody is told of a new model
                    await asyncio.sleep(_LOOK_AGAIN_S)
                served = serving.models.find(name)
                while not served.ready and served.load_error is None:
                    await served.changed()
        except TimeoutError:
            raise EmbedderAwayError(f"the embedding model {name!r} has not started within {start_s:g} s") from None


class ServedEmbedder:
    """One version of a served embedding model."""

    def __init__(
        self, serving: Callable[[], ServingContext], breakers: Breakers, model: ReadyModel, timeout_s: float
    ) -> None:
        self._serving = serving
        self._breakers = breakers
        self._model = model
        self._timeout_s = timeout_s  # for queries: somebody waits

    @property
    def identity(self) -> str:
        return f"{self._model.name}@{self._model.version}"[:256]

    async def embed(self, principal: Principal, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """Embed texts; of one that is longer than the model reads, the mean of its parts' vectors is taken."""
        pieces = await self._cut(principal, texts)
        flat = [piece for each in pieces for piece in each]
        parts = [
            await self._embed_some(principal, flat[first : first + _AT_ONCE], query=query)
            for first in range(0, len(flat), _AT_ONCE)
        ]
        found = np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)
        starts = np.cumsum([0, *map(len, pieces[:-1])]) if pieces else np.empty(0, int)
        means = np.add.reduceat(found, starts, axis=0) if len(found) else found
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        return np.asarray(means / np.where(lengths == 0, 1, lengths), dtype=np.float16)

    async def _cut(self, principal: Principal, texts: Sequence[str]) -> list[list[Any]]:
        """Each text in parts that the model reads whole: as tokens, so that no text is tokenized again; as texts where
        another server runs the model, which may take no tokens."""
        if self._model.loaded_text is None:
            return [[text] for text in texts]
        tokenizer, longest = self._model.text.tokenizer, self._model.card.max_context_length
        work = self._serving().text
        size, place = sum(map(len, texts)), 0 if self._model.is_external else 1
        try:
            return await work.run(
                principal.organization_id,
                size,
                lambda: [[part[place] for part in split_long(text, tokenizer, longest)] for text in texts],
            )
        except TokenizerError as error:
            raise EmbedderAwayError(f"a text cannot be embedded: {error}") from error

    async def _embed_some(self, principal: Principal, inputs: list[Any], *, query: bool) -> Array:
        serving, name = self._serving(), self._model.name
        async with (
            self._breakers.asking(name, self._timeout_s if query else None),
            own_request(serving, principal, _ENDPOINT, deferred=not query) as record,
        ):
            request = EmbeddingRequest(model=name, input=inputs, encoding_format="base64")
            work, _ = await start_embedding(serving, record, request)
            answer = await work
        vectors = [np.frombuffer(base64.b64decode(str(each.embedding)), "<f4") for each in answer.data]
        return np.stack(vectors)


class QueryVectors:
    """Vectors of queries, those used last, by project and embedder. Of the queries themselves digests are kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._vectors = OrderedDict[tuple[Owner, str, bytes], Array]()

    def get(self, owner: Owner, identity: str, query: str) -> Array | None:
        key = (owner, identity, _digest(query))
        found = self._vectors.get(key)
        if found is not None:
            self._vectors.move_to_end(key)
        return found

    def put(self, owner: Owner, identity: str, query: str, vector: Array) -> None:
        self._vectors[owner, identity, _digest(query)] = vector
        if len(self._vectors) > self._size:
            self._vectors.popitem(last=False)

    def forget(self, owner: Owner) -> None:
        for key in [key for key in self._vectors if key[0] == owner]:
            del self._vectors[key]


def split_long(text: str, tokenizer: Tokenizer, longest: int) -> list[tuple[str, list[int]]]:
    """A text in parts that a model reads whole, cut at a space near the middle, as often as needed: each part and its
    tokens."""
    text = text.strip() or "."
    special = len(tokenizer.encode("", add_special_tokens=True))
    if len(text) < 2 or tokenizer.count(text) + special <= longest:
        return [(text, tokenizer.encode(text, add_special_tokens=True))]
    middle = len(text) // 2
    at = text.find(" ", middle, middle + len(text) // 4)
    at = middle if at < 0 else at
    return [part for half in (text[:at], text[at:]) for part in split_long(half, tokenizer, longest)]


def _digest(query: str) -> bytes:
    return hashlib.blake2b(query.encode("utf-8", "surrogatepass"), digest_size=16).digest()
