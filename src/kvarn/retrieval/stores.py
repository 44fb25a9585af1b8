"""Operations on vector stores: what clients ask of them, and searches in them, for routes and tools alike."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvarn.answers.errors import storage_full
from kvarn.retrieval.ingestion import IngestionWorker
from kvarn.retrieval.search import Retriever
from kvarn.retrieval.types import SearchResult
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError, StorageFullError, StoreAwayError
from kvarn.store.models import VectorStore, VectorStoreFile
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.vector_stores import files as stored_files
from kvarn.store.repositories.vector_stores import stores as stored
from kvarn.store.repositories.vector_stores.attachments import Attachment
from kvarn.store.repositories.vector_stores.deletion import drop_store
from kvarn.store.repositories.vector_stores.files import SummedBatch
from kvarn.store.repositories.vector_stores.stores import SummedStore
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.vector_stores import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_OVERLAP_TOKENS,
    CreateFileBatchRequest,
    CreateVectorStoreRequest,
    FileToAdd,
    StaticChunking,
    UpdateFileRequest,
    UpdateVectorStoreRequest,
)

_log = logging.getLogger("kvarn.retrieval")


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Vector stores of one gateway, what is found in them, and what fills them."""

    store: Store
    index: Retriever
    ingestion: IngestionWorker

    async def create(self, principal: Principal, body: CreateVectorStoreRequest) -> SummedStore:
        if body.embedding_model is not None:
            try:
                self.index.embedders.check(principal, body.embedding_model)
            except ApiError as error:
                error.param = "embedding_model"
                raise
        fields = {
            "name": body.name,
            "description": body.description,
            "extra": body.metadata or {},
            "embedding_model": body.embedding_model,
        }
        days = None if body.expires_after is None else body.expires_after.days
        strategy = body.chunking_strategy
        files = [FileToAdd(file_id=file_id, chunking_strategy=strategy) for file_id in body.file_ids or ()]
        with _explained("file_ids"):
            made = await stored.create_store(self.store, principal.owner, fields, days, _attachments(files))
        self.ingestion.wake()
        return made

    async def update(self, owner: Owner, store_id: str, body: UpdateVectorStoreRequest) -> SummedStore:
        changes: dict[str, Any] = {}
        given = body.model_fields_set
        if "name" in given:
            changes["name"] = body.name or ""
        if "metadata" in given:
            changes["extra"] = body.metadata or {}
        if "expires_after" in given:
            changes["expires_after_days"] = None if body.expires_after is None else body.expires_after.days
        return await stored.update_store(self.store, owner, store_id, changes)

    async def delete(self, owner: Owner, store_id: str) -> None:
        row = await stored.hide_store(self.store, owner, store_id)
        await self.index.remove_store(owner, store_id)
        await drop_store(self.store, row)

    async def add_file(self, owner: Owner, store_id: str, body: FileToAdd) -> VectorStoreFile:
        await self._find(owner, [store_id])
        with _explained("file_id"):
            made = await stored_files.add_file(self.store, owner, store_id, _attachment(body))
        self.ingestion.wake()
        return made

    async def add_batch(self, owner: Owner, store_id: str, body: CreateFileBatchRequest) -> SummedBatch:
        await self._find(owner, [store_id])
        with _explained("file_ids" if body.file_ids else "files"):
            made = await stored_files.add_batch(self.store, owner, store_id, _attachments(body.all_files))
        self.ingestion.wake()
        return made

    async def update_file(self, owner: Owner, store_id: str, file_id: str, body: UpdateFileRequest) -> VectorStoreFile:
        changes: dict[str, Any] = {}
        if "attributes" in body.model_fields_set:
            changes["attributes"] = body.attributes or {}
        if "readers" in body.model_fields_set:
            changes["readers"] = body.readers
        return await stored_files.update_file(self.store, owner, store_id, file_id, changes)

    async def delete_file(self, owner: Owner, store_id: str, file_id: str) -> None:
        await stored_files.delete_file(self.store, owner, store_id, file_id)

    async def read_texts(self, principal: Principal, store_id: str, file_id: str) -> list[str]:
        """A file's text as it was read from it, passage by passage; what two have in common is in the first. Raises
        `NotFoundError` where the principal is none of its readers."""
        row = await stored_files.read_file(self.store, principal.owner, store_id, file_id)
        if row.readers is not None and not readers_of(principal) & set(row.readers):
            raise NotFoundError(f"There is no file {file_id[:80]!r} in this vector store.")
        texts, read = list[str](), 0
        for chunk in await self.index.read_file(principal.owner, store_id, file_id):
            texts.append(chunk.text[max(0, read - chunk.start) :])
            read = max(read, chunk.end)
        return [text for text in texts if text]

    async def search(
        self,
        principal: Principal,
        store_ids: Sequence[str],
        queries: Sequence[str],
        *,
        filters: Mapping[str, Any] | None = None,
        max_results: int = 10,
        score_threshold: float = 0.0,
        ranker: str = "auto",
        for_prompt: bool = False,
    ) -> SearchResult:
        """Find what answers the queries best, of what the principal may read. `for_prompt`: what is found goes into a
        prompt, whose cached blocks are given up when it is deleted. Raises `NotFoundError` where a store is not there,
        `ApiError` (400) where it has expired."""
        owner = principal.owner
        await self._find(owner, store_ids)
        try:
            await stored.note_use(self.store, store_ids)
        except StoreAwayError as error:  # most often it takes no writes at present, and can be searched all the same
            _log.debug("the use of vector stores was not noted: %s", error)
        found = await self.index.search(
            principal,
            store_ids,
            queries,
            filters=filters,
            max_results=max_results,
            score_threshold=score_threshold,
            ranker=ranker,
            readers=readers_of(principal),
        )
        if for_prompt and found.hits:
            quoted = defaultdict[str, set[str]](set)
            for hit in found.hits:
                quoted[hit.store_id].add(hit.file_id)
            await stored_files.note_quoted(self.store, owner, quoted)
        return found

    async def check(self, owner: Owner, store_ids: Sequence[str]) -> None:
        """Check that stores may be searched. Raises as `search` does."""
        await self._find(owner, store_ids)

    async def _find(self, owner: Owner, store_ids: Sequence[str]) -> list[VectorStore]:
        """Stores that may be used. Raises as `search` does."""
        rows = await stored.find_stores(self.store, owner, store_ids)
        for row in rows:
            if is_expired(row, self.store.now()):
                message = f"The vector store {row.id} has expired: make another one."
                raise ApiError(400, message, code="vector_store_expired", param="vector_store_id")
        return rows


def is_expired(row: VectorStore, now: float) -> bool:
    return row.expires_at is not None and row.expires_at <= now


def readers_of(principal: Principal) -> frozenset[str]:
    """Names under which a principal may be among the readers of a file."""
    user = () if principal.user_id is None else (principal.user_id,)
    return frozenset((*user, f"role:{principal.role}"))


def _attachments(files: Sequence[FileToAdd]) -> list[Attachment]:
    return [_attachment(each) for each in {file.file_id: file for file in files}.values()]


def _attachment(file: FileToAdd) -> Attachment:
    sizes = (DEFAULT_MAX_TOKENS, DEFAULT_OVERLAP_TOKENS)
    if isinstance(file.chunking_strategy, StaticChunking):
        static = file.chunking_strategy.static
        sizes = (static.max_chunk_size_tokens, static.chunk_overlap_tokens)
    return Attachment(file.file_id, file.attributes or {}, file.readers, *sizes)


@contextmanager
def _explained(param: str) -> Generator[None]:
    """Name the field that brought more than its organisation may store."""
    try:
        yield
    except StorageFullError as error:
        raise storage_full(error, param) from None
