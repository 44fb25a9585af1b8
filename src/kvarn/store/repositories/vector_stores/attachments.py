"""Files put into vector stores: each is queued for ingestion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.models import File, VectorStore, VectorStoreFile
from kvarn.store.owner import Owner
from kvarn.store.repositories import chunks
from kvarn.store.repositories.files import visible_files
from kvarn.store.repositories.queries import insert
from kvarn.store.repositories.stored_bytes import ROW_BYTES

DAY_S = 24 * 3600
MAX_FILES = 10_000
"""Files of one vector store."""


@dataclass(frozen=True, slots=True)
class Attachment:
    file_id: str
    attributes: Mapping[str, Any]
    readers: Sequence[str] | None
    max_tokens: int
    overlap_tokens: int


async def read_sizes(store: Store, owner: Owner, attachments: Sequence[Attachment]) -> int:
    """Bytes that files will take at least, as far as their sizes tell; refused before any work is done for them."""
    ids = [each.file_id for each in attachments]
    query = visible_files(owner, store.now()).where(File.id.in_(ids)).with_only_columns(func.sum(File.size))
    async with store.reading() as session:
        return ROW_BYTES * len(ids) + (int(await session.scalar(query) or 0) if ids else 0)


async def lock_files(
    session: AsyncSession, owner: Owner, attachments: Sequence[Attachment], now: int
) -> dict[str, File]:
    """The files to put into a store, which nobody deletes before the transaction's end. Raises `NotFoundError` where
    one is not there."""
    ids = [each.file_id for each in attachments]
    query = visible_files(owner, now).where(File.id.in_(ids)).order_by(File.id).with_for_update(read=True)
    files = {file.id: file for file in await session.scalars(query)} if ids else {}
    for file_id in ids:
        if file_id not in files:
            raise NotFoundError(f"There is no file {file_id[:80]!r}.")
    return files


async def attach(
    session: AsyncSession,
    owner: Owner,
    row: VectorStore,
    files: Mapping[str, File],
    attachments: Sequence[Attachment],
    now: int,
    batch_id: str | None = None,
) -> None:
    """Queue locked files for ingestion. One that is in the store already is ingested anew, and found as it was until
    then. Raises `ConflictError` where there would be more than `MAX_FILES`."""
    by_id = {each.file_id: each for each in attachments}
    if not by_id:
        return
    of_store = VectorStoreFile.store_id == row.id
    there = set(
        await session.scalars(select(VectorStoreFile.file_id).where(of_store, VectorStoreFile.file_id.in_(by_id)))
    )
    count = int(await session.scalar(select(func.count()).select_from(VectorStoreFile).where(of_store)) or 0)
    if count + len(by_id.keys() - there) > MAX_FILES:
        raise ConflictError(f"A vector store has at most {MAX_FILES} files: make another one.")
    await session.execute(_queue(session, row.id, batch_id), [_queued(files[each], by_id[each], now) for each in by_id])
    named = [
        chunks.NamedFile(file_id, files[file_id].filename, each.attributes, each.readers)
        for file_id, each in by_id.items()
    ]
    await chunks.put_files(session, owner, row.id, named)
    row.last_active_at, row.expires_at = now, expiry(now, row.expires_after_days)
    row.counted_bytes += ROW_BYTES * len(by_id.keys() - there)


def _queue(session: AsyncSession, store_id: str, batch_id: str | None) -> Any:
    fixed = {"status": "in_progress", "progress": 0.0, "attempts": 0, "batch_id": batch_id, "stale": False}
    statement = insert(session, VectorStoreFile).values(
        store_id=store_id, usage_bytes=0, version="", embedder="", **fixed
    )
    given = ("attributes", "readers", "max_tokens", "overlap_tokens", "expires_at")
    again = {name: statement.excluded[name] for name in given}
    ended = {"error_code": None, "error_message": None, "leased_by": None, "leased_until": None}
    return statement.on_conflict_do_update(index_elements=["store_id", "file_id"], set_={**fixed, **again, **ended})


def _queued(file: File, attachment: Attachment, now: int) -> dict[str, Any]:
    return {
        "file_id": file.id,
        "filename": file.filename,
        "created_at": now,
        "expires_at": file.expires_at,
        "attributes": dict(attachment.attributes),
        "readers": None if attachment.readers is None else list(attachment.readers),
        "max_tokens": attachment.max_tokens,
        "overlap_tokens": attachment.overlap_tokens,
    }


def expiry(since: int, days: int | None) -> int | None:
    return None if days is None else since + days * DAY_S
