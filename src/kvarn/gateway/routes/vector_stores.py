"""`/v1/vector_stores`: files that are searched, by OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from pydantic import Field

from kvarn.gateway.dependencies import GatewayDep, OwnerDep, PrincipalDep, RecordDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, BackwardQuery, OrderedQuery, described, list_answer
from kvarn.retrieval.stores import is_expired
from kvarn.retrieval.types import Hit
from kvarn.store.models import VectorStoreFile
from kvarn.store.repositories.chunks import count_passages
from kvarn.store.repositories.vector_stores import files as stored_files
from kvarn.store.repositories.vector_stores import stores as stored
from kvarn.store.repositories.vector_stores.files import SummedBatch
from kvarn.store.repositories.vector_stores.stores import FileSums, SummedStore
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.vector_stores import (
    CreateFileBatchRequest,
    CreateVectorStoreRequest,
    ExpiryObject,
    FileBatchObject,
    FileContentPage,
    FileCounts,
    FileStatus,
    FileToAdd,
    LastError,
    PlaceObject,
    ScoresObject,
    SearchHit,
    SearchRequest,
    SearchResultsPage,
    StaticChunkingObject,
    StaticSizesObject,
    TextContent,
    UpdateFileRequest,
    UpdateVectorStoreRequest,
    VectorStoreFileObject,
    VectorStoreObject,
)

_ASK_AGAIN_MS = 200

router = json_router("/v1/vector_stores", "vector stores", CHECKED)


class StoreQuery(BackwardQuery, OrderedQuery):
    """Which stores."""


class StoreFileQuery(StoreQuery):
    """Which files of a store."""

    filter: FileStatus | None = Field(None, description="Select files of this status.")


@router.post("", summary="Make a vector store")
async def create_vector_store(
    gateway: GatewayDep, principal: PrincipalDep, body: CreateVectorStoreRequest
) -> VectorStoreObject:
    """Make a vector store; its `file_ids` are ingested in the background."""
    return _store(await gateway.retrieval.create(principal, body), gateway.store.now())


@router.get("", summary="List vector stores")
async def list_vector_stores(gateway: GatewayDep, owner: OwnerDep, query: StoreQuery) -> ListObject[VectorStoreObject]:
    """The project's vector stores by age, newest first unless `order` is `asc`."""
    now = gateway.store.now()
    return list_answer(await stored.list_stores(gateway.store, owner, query.cursor), lambda each: _store(each, now))


@router.get("/{vector_store_id}", summary="Retrieve a vector store")
async def get_vector_store(gateway: GatewayDep, owner: OwnerDep, vector_store_id: str) -> VectorStoreObject:
    return _store(await stored.read_store(gateway.store, owner, vector_store_id), gateway.store.now())


@router.post("/{vector_store_id}", summary="Change a vector store")
async def update_vector_store(
    gateway: GatewayDep, owner: OwnerDep, vector_store_id: str, body: UpdateVectorStoreRequest
) -> VectorStoreObject:
    """Change its name, metadata or expiry; the days of that are counted from now on."""
    return _store(await gateway.retrieval.update(owner, vector_store_id, body), gateway.store.now())


@router.delete("/{vector_store_id}", summary="Delete a vector store")
async def delete_vector_store(gateway: GatewayDep, owner: OwnerDep, vector_store_id: str) -> DeletedObject:
    """Delete a vector store and what was read from its files; the files themselves stay."""
    await gateway.retrieval.delete(owner, vector_store_id)
    return DeletedObject(id=vector_store_id, object="vector_store.deleted")


@router.post("/{vector_store_id}/search", summary="Search a vector store")
async def search_vector_store(
    gateway: GatewayDep, record: RecordDep, vector_store_id: str, body: SearchRequest
) -> SearchResultsPage:
    """Find the passages that answer a query best, by meaning and by words. What had to be left out of the search, such
    as an embedding model that does not answer, is told as a warning."""
    found = await gateway.retrieval.search(
        record.principal,
        [vector_store_id],
        body.queries,
        filters=None if body.filters is None else body.filters.model_dump(),
        max_results=body.max_num_results,
        score_threshold=body.ranking_options.score_threshold,
        ranker=body.ranking_options.ranker,
    )
    record.reply.warnings += found.degraded
    if not body.explain:
        return SearchResultsPage(search_query=body.queries, data=[_hit(hit) for hit in found.hits])
    data = [_explained(_hit(hit), hit) for hit in found.hits]
    return SearchResultsPage(search_query=body.queries, data=data, degraded=list(found.degraded))


@router.post("/{vector_store_id}/files", summary="Add a file to a vector store")
async def create_vector_store_file(
    gateway: GatewayDep, owner: OwnerDep, vector_store_id: str, body: FileToAdd
) -> VectorStoreFileObject:
    """Have a file ingested in the background. One that is in the store already is ingested anew."""
    return _file(await gateway.retrieval.add_file(owner, vector_store_id, body))


@router.get("/{vector_store_id}/files", summary="List the files of a vector store")
async def list_vector_store_files(
    gateway: GatewayDep, owner: OwnerDep, vector_store_id: str, query: StoreFileQuery
) -> ListObject[VectorStoreFileObject]:
    page = await stored_files.list_files(gateway.store, owner, vector_store_id, query.cursor, query.filter)
    passages = await count_passages(gateway.store, vector_store_id, [row.file_id for row in page.items])
    return list_answer(page, lambda row: _file(row, passages.get(row.file_id, 0)))


@router.get("/{vector_store_id}/files/{file_id}", summary="Retrieve a file of a vector store")
async def get_vector_store_file(
    gateway: GatewayDep, record: RecordDep, owner: OwnerDep, vector_store_id: str, file_id: str
) -> VectorStoreFileObject:
    row = await stored_files.read_file(gateway.store, owner, vector_store_id, file_id)
    passages = await count_passages(gateway.store, vector_store_id, [file_id])
    file = _file(row, passages.get(file_id, 0))
    record.reply.headers |= _ask_again(file.status)
    return file


@router.post("/{vector_store_id}/files/{file_id}", summary="Change a file of a vector store")
async def update_vector_store_file(
    gateway: GatewayDep, owner: OwnerDep, vector_store_id: str, file_id: str, body: UpdateFileRequest
) -> VectorStoreFileObject:
    """Change its attributes or its readers; searches go by them at once."""
    return _file(await gateway.retrieval.update_file(owner, vector_store_id, file_id, body))


@router.delete("/{vector_store_id}/files/{file_id}", summary="Take a file out of a vector store")
async def delete_vector_store_file(
    gateway: GatewayDep, owner: OwnerDep, vector_store_id: str, file_id: str
) -> DeletedObject:
    """Delete what was read from a file; the file itself stays."""
    await gateway.retrieval.delete_file(owner, vector_store_id, file_id)
    return DeletedObject(id=file_id, object="vector_store.file.deleted")


@router.get("/{vector_store_id}/files/{file_id}/content", summary="Read the text of a file of a vector store")
async def get_vector_store_file_content(
    gateway: GatewayDep, principal: PrincipalDep, vector_store_id: str, file_id: str
) -> FileContentPage:
    """The text that was read from a file, passage by passage."""
    texts = await gateway.retrieval.read_texts(principal, vector_store_id, file_id)
    return FileContentPage(data=_texts(texts))


@router.post("/{vector_store_id}/file_batches", summary="Add files to a vector store")
async def create_vector_store_file_batch(
    gateway: GatewayDep, owner: OwnerDep, vector_store_id: str, body: CreateFileBatchRequest
) -> FileBatchObject:
    """Have up to 2,000 files ingested in the background."""
    return _batch(await gateway.retrieval.add_batch(owner, vector_store_id, body))


@router.get("/{vector_store_id}/file_batches/{batch_id}", summary="Retrieve a file batch")
async def get_vector_store_file_batch(
    gateway: GatewayDep, record: RecordDep, owner: OwnerDep, vector_store_id: str, batch_id: str
) -> FileBatchObject:
    batch = _batch(await stored_files.read_batch(gateway.store, owner, vector_store_id, batch_id))
    record.reply.headers |= _ask_again(batch.status)
    return batch


@router.post("/{vector_store_id}/file_batches/{batch_id}/cancel", summary="Cancel a file batch")
async def cancel_vector_store_file_batch(
    gateway: GatewayDep, owner: OwnerDep, vector_store_id: str, batch_id: str
) -> FileBatchObject:
    """Cancel the ingestion of those files that are not ingested yet."""
    return _batch(await stored_files.cancel_batch(gateway.store, owner, vector_store_id, batch_id))


@router.get("/{vector_store_id}/file_batches/{batch_id}/files", summary="List the files of a batch")
async def list_vector_store_batch_files(
    gateway: GatewayDep, owner: OwnerDep, vector_store_id: str, batch_id: str, query: StoreFileQuery
) -> ListObject[VectorStoreFileObject]:
    page = await stored_files.list_files(gateway.store, owner, vector_store_id, query.cursor, query.filter, batch_id)
    return list_answer(page, _file)


def _ask_again(status: str) -> dict[str, str]:
    """A header that tells OpenAI's clients when to ask again what they wait for."""
    return {"openai-poll-after-ms": str(_ASK_AGAIN_MS)} if status == "in_progress" else {}


def _store(summed: SummedStore, now: float) -> VectorStoreObject:
    row = summed.row
    status = "in_progress" if summed.sums.by_status["in_progress"] else "completed"
    return described(
        VectorStoreObject,
        row,
        usage_bytes=summed.sums.usage_bytes,
        file_counts=_counts(summed.sums),
        status="expired" if is_expired(row, now) else status,
        metadata=row.extra,
        passages=summed.passages,
        embedded_by=summed.embedder or None,
        expires_after=UNSET if row.expires_after_days is None else ExpiryObject(days=row.expires_after_days),
        embedding_model=UNSET if row.embedding_model is None else row.embedding_model,
    )


def _file(row: VectorStoreFile, passages: int | UnsetType = UNSET) -> VectorStoreFileObject:
    sizes = StaticSizesObject(max_chunk_size_tokens=row.max_tokens, chunk_overlap_tokens=row.overlap_tokens)
    failed = row.error_code is not None
    return VectorStoreFileObject(
        id=row.file_id,
        filename=row.filename,
        created_at=row.created_at,
        vector_store_id=row.store_id,
        usage_bytes=row.usage_bytes,
        status=row.status,
        last_error=LastError(code=row.error_code or "", message=row.error_message or "") if failed else None,
        chunking_strategy=StaticChunkingObject(static=sizes),
        attributes=row.attributes,
        readers=UNSET if row.readers is None else row.readers,
        progress=row.progress if row.status == "in_progress" else UNSET,
        passages=passages,
    )


def _batch(summed: SummedBatch) -> FileBatchObject:
    row, by_status = summed.row, summed.sums.by_status
    if by_status["in_progress"]:
        status = "in_progress"
    elif row.cancelled:
        status = "cancelled"
    else:
        status = "failed" if by_status["failed"] and by_status["failed"] == by_status.total() else "completed"
    return FileBatchObject(
        id=row.id,
        created_at=row.created_at,
        vector_store_id=row.store_id,
        status=status,
        file_counts=_counts(summed.sums),
    )


def _counts(sums: FileSums) -> FileCounts:
    by_status = sums.by_status
    return FileCounts(
        in_progress=by_status["in_progress"],
        completed=by_status["completed"],
        failed=by_status["failed"],
        cancelled=by_status["cancelled"],
        total=by_status.total(),
    )


def _hit(hit: Hit) -> SearchHit:
    return SearchHit(
        file_id=hit.file_id,
        filename=hit.filename,
        score=hit.score,
        attributes=dict(hit.attributes),
        content=_texts([hit.chunk.text]),
    )


def _explained(shown: SearchHit, hit: Hit) -> SearchHit:
    scores, chunk = hit.scores, hit.chunk
    return replace(
        shown,
        scores=ScoresObject(words=scores.words, vectors=scores.vectors, fusion=scores.fusion, reranker=scores.reranker),
        place=PlaceObject(start=chunk.start, end=chunk.end, page=chunk.page, section=chunk.section),
    )


def _texts(texts: Sequence[str]) -> list[TextContent]:
    return [TextContent(text=text) for text in texts]
