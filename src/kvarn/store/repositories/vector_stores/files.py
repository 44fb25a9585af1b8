"""Files of vector stores, as their owners see them, and batches of files that were added together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, or_, select, update

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.ids import is_id, new_id
from kvarn.store.models import VectorStore, VectorStoreFile, VectorStoreFileBatch
from kvarn.store.owner import Owner
from kvarn.store.repositories import chunks
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one, find_owned, given_values, owned_by
from kvarn.store.repositories.stored_bytes import ROW_BYTES, storing
from kvarn.store.repositories.vector_stores.attachments import Attachment, attach, lock_files, read_sizes
from kvarn.store.repositories.vector_stores.deletion import delete_chunks, remove_files
from kvarn.store.repositories.vector_stores.stores import FileSums, find_store, sum_files

_FILE_AGE = (VectorStoreFile.created_at, VectorStoreFile.file_id)


@dataclass(frozen=True, slots=True)
class SummedBatch:
    row: VectorStoreFileBatch
    sums: FileSums


async def add_file(store: Store, owner: Owner, store_id: str, attachment: Attachment) -> VectorStoreFile:
    """Put a file into a store. Raises as `attach` does, and `StorageFullError`."""
    await _add(store, owner, store_id, [attachment], None)
    return await read_file(store, owner, store_id, attachment.file_id)


async def add_batch(store: Store, owner: Owner, store_id: str, attachments: Sequence[Attachment]) -> SummedBatch:
    """Put files into a store, all or none. Raises as `add_file` does."""
    row = VectorStoreFileBatch(
        id=new_id("vsfb_"),
        organization_id=owner.organization_id,
        project_id=owner.project_id,
        store_id=store_id,
        created_at=int(store.now()),
    )
    await _add(store, owner, store_id, attachments, row)
    return await read_batch(store, owner, store_id, row.id)


async def _add(
    store: Store, owner: Owner, store_id: str, attachments: Sequence[Attachment], batch: VectorStoreFileBatch | None
) -> None:
    async with store.reading() as session:
        await find_store(session, owner, store_id)
    size = await read_sizes(store, owner, attachments)
    async with storing(store, owner.organization_id, size) as session:
        now = int(store.now())
        files = await lock_files(session, owner, attachments, now)
        row = await find_store(session, owner, store_id, to_change=True)
        if batch is not None:
            session.add(batch)
            row.counted_bytes += ROW_BYTES
        await attach(session, owner, row, files, attachments, now, None if batch is None else batch.id)


async def read_file(store: Store, owner: Owner, store_id: str, file_id: str) -> VectorStoreFile:
    async with store.reading() as session:
        await find_store(session, owner, store_id)
        return await find_one(session, _one(store_id, file_id), _missing(file_id))


async def list_files(
    store: Store, owner: Owner, store_id: str, cursor: Cursor, status: str | None, batch_id: str | None = None
) -> Page[VectorStoreFile]:
    """A page of a store's files by age, of one status or batch where that is named."""
    if batch_id is not None:
        await read_batch(store, owner, store_id, batch_id)
    wanted = given_values((VectorStoreFile.status, status), (VectorStoreFile.batch_id, batch_id))
    query = _of_store(store_id).where(*wanted)
    async with store.reading() as session:
        await find_store(session, owner, store_id)
        return await read_page(session, query, cursor, _FILE_AGE)


async def update_file(
    store: Store, owner: Owner, store_id: str, file_id: str, changes: Mapping[str, Any]
) -> VectorStoreFile:
    """Change attributes or readers: searches go by them at once."""
    async with store.transaction() as session:
        await find_store(session, owner, store_id)
        row = await find_one(session, _one(store_id, file_id), _missing(file_id), to_change=True)
        for column, value in changes.items():
            setattr(row, column, value)
        name = row.filename
        await chunks.put_file(
            session, owner, store_id, file_id, filename=name, attributes=row.attributes, readers=row.readers
        )
    return row


async def note_quoted(store: Store, owner: Owner, quoted: Mapping[str, Collection[str]]) -> None:
    """Note, before passages go into a prompt, which files of which stores they are of: what is cached of the prompt is
    given up when one of them is deleted."""
    now = int(store.now())
    is_one = or_(
        *(
            (VectorStoreFile.store_id == store_id) & VectorStoreFile.file_id.in_(file_ids)
            for store_id, file_ids in quoted.items()
            if file_ids
        )
    )
    new = is_one, VectorStoreFile.quoted_at.is_(None), VectorStoreFile.store_id.in_(owned_ids(owner))
    async with store.reading() as session:
        if await session.scalar(select(VectorStoreFile.file_id).where(*new).limit(1)) is None:
            return
    async with store.transaction() as session:
        await session.execute(update(VectorStoreFile).where(*new).values(quoted_at=now))


def owned_ids(owner: Owner) -> Select[str]:
    return owned_by(owner, VectorStore).with_only_columns(VectorStore.id)


async def delete_file(store: Store, owner: Owner, store_id: str, file_id: str) -> None:
    """Take a file out of a store; the file itself stays."""
    async with store.transaction() as session:
        await find_store(session, owner, store_id, to_change=True)
        await find_one(session, _one(store_id, file_id), _missing(file_id), to_change=True)
        is_it = (VectorStoreFile.store_id == store_id) & (VectorStoreFile.file_id == file_id)
        removed = await remove_files(session, is_it, int(store.now()))
    await delete_chunks(store, removed)


async def read_batch(store: Store, owner: Owner, store_id: str, batch_id: str) -> SummedBatch:
    async with store.reading() as session:
        await find_store(session, owner, store_id)
        row = await find_owned(session, owner, VectorStoreFileBatch, batch_id)
        if row.store_id != store_id:
            raise NotFoundError(f"There is no vector store file batch {batch_id[:80]!r} in this vector store.")
        sums = await sum_files(session, VectorStoreFile.batch_id, [batch_id])
    return SummedBatch(row, sums[batch_id])


async def cancel_batch(store: Store, owner: Owner, store_id: str, batch_id: str) -> SummedBatch:
    """Cancel the files of a batch that are not ingested yet; one that is over stays as it is."""
    batch = await read_batch(store, owner, store_id, batch_id)
    if batch.sums.by_status["in_progress"]:
        ended = {"status": "cancelled", "leased_by": None, "leased_until": None}
        is_open = VectorStoreFile.batch_id == batch_id, VectorStoreFile.status == "in_progress"
        is_it = VectorStoreFileBatch.id == batch_id
        async with store.transaction() as session:
            cancelled = update(VectorStoreFile).where(*is_open).values(ended).returning(VectorStoreFile.file_id)
            never_found = cancelled.where(VectorStoreFile.version == "")
            ids = list(await session.scalars(never_found))
            await chunks.remove_files(session, owner, store_id, ids)  # a job that is late adds nothing to them
            await session.execute(cancelled)
            await session.execute(update(VectorStoreFileBatch).where(is_it).values(cancelled=True))
    return await read_batch(store, owner, store_id, batch_id)


def _of_store(store_id: str) -> Select[VectorStoreFile]:
    return select(VectorStoreFile).where(VectorStoreFile.store_id == store_id)


def _one(store_id: str, file_id: str) -> Select[VectorStoreFile]:
    if not is_id(file_id):
        raise NotFoundError(_missing(file_id))
    return _of_store(store_id).where(VectorStoreFile.file_id == file_id)


def _missing(file_id: str) -> str:
    return f"There is no file {file_id[:80]!r} in this vector store."
