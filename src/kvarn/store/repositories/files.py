"""Files: what clients uploaded and what batches wrote. A row says what a file is; its content is in `contents.py`.

Of uploads that come at the same time none passes the bound of its organisation's account (`stored_bytes.py`): what is
not whole yet counts, too.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from typing import Self

from sqlalchemy import Select, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from kvarn.store.blobs import CHUNK_BYTES, BlobWriter
from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError, StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.models import Batch, Container, File, Upload, VectorStoreFile
from kvarn.store.models.files import INCOMPLETE, PROCESSED
from kvarn.store.owner import Owner
from kvarn.store.repositories.contents import add_chunks, check_blobs, delete_content
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one, given_values, is_owned_by, owned_by
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_file_bytes, storing_file
from kvarn.store.repositories.vector_stores.deletion import delete_chunks, remove_files

MESSAGE_BATCH = "msgbatch_"
"""Beginning of the ids of batches whose files the server keeps itself: the requests came without one."""

_FLUSH_BYTES = 4 * CHUNK_BYTES
_ABANDONED_S = 24 * 3600
"""A file that was not published a day after it was begun belongs to a process that died."""


class FileWriter:
    """A hidden file. Write it, `finish` it and publish it (`publish_file`), all in a `with` block: an error in that
    leaves nothing of it. `counted`: it counts before it is published, and has a bound. `part_of`: the upload whose part
    it is, or the container in which it lies: it is never published, and goes with that."""

    def __init__(
        self, store: Store, owner: Owner, *, counted: bool = True, part_of: Upload | Container | None = None
    ) -> None:
        self.size = 0  # bytes taken so far
        self._store = store
        self._owner = owner
        self._counted = counted
        self._part_of = part_of
        self._id: str | None = None
        self._buffer = bytearray()
        self._blob: BlobWriter | None = None
        self._position = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            await self.discard()

    async def write(self, data: bytes | memoryview) -> None:
        """Append to the file. Raises `NotFoundError` where it was given up meanwhile."""
        self.size += len(data)
        self._buffer += data
        while len(self._buffer) >= _FLUSH_BYTES:
            await self._flush(_FLUSH_BYTES)

    async def finish(self) -> str:
        """Write what is left; the file's id, to be published. Raises as `write` does."""
        await self._flush(len(self._buffer))
        assert self._id is not None
        if self._blob is not None:
            await self._blob.close()
        return self._id

    async def discard(self) -> None:
        """Leave nothing of it, even where the caller is being cancelled."""
        if self._id is not None:
            await asyncio.shield(self._discard(self._id))

    async def _discard(self, file_id: str) -> None:
        if self._blob is not None:
            with suppress(StoreAwayError):
                await self._blob.close()
        await drop_file(self._store, file_id)

    async def _flush(self, size: int) -> None:
        if self._id is None:
            self._id = await self._begin()
        data = bytes(self._buffer[:size])
        if data:
            await self._append(self._id, data)
        del self._buffer[:size]

    async def _begin(self) -> str:
        now, whole = int(self._store.now()), self._part_of
        upload = whole if isinstance(whole, Upload) else None
        file = File(
            id=new_id("cfile_" if isinstance(whole, Container) else "part_" if upload is not None else "file-"),
            organization_id=self._owner.organization_id,
            project_id=self._owner.project_id,
            filename="",
            purpose="",
            status=INCOMPLETE,
            size=0,
            created_at=now,
            expires_at=now + _ABANDONED_S if upload is None else upload.expires_at,
            counted=self._counted,
            in_blobs=self._store.blobs is not None,
            upload_id=None if upload is None else upload.id,
            container_id=whole.id if isinstance(whole, Container) else None,
        )
        async with self._transaction(ROW_BYTES) as session:
            session.add(file)
        return file.id

    async def _append(self, file_id: str, data: bytes) -> None:
        blobs = self._store.blobs
        longer = update(File).where(File.id == file_id).values(size=File.size + len(data)).returning(File.id)
        async with self._transaction(len(data)) as session:
            if await session.scalar(longer) is None:
                raise _given_up(file_id)
            if blobs is None:
                self._position += add_chunks(session, file_id, self._position, data)
        if blobs is not None:
            self._blob = self._blob or await blobs.create(file_id)
            await self._blob.write(data)

    def _transaction(self, size: int) -> AbstractAsyncContextManager[AsyncSession]:
        own = self._owner.organization_id
        return storing_file(self._store, own, size) if self._counted else self._store.transaction()


async def publish_file(
    session: AsyncSession, file_id: str, *, filename: str, purpose: str, now: int, expires_at: int | None
) -> File:
    """Make a file visible, as part of a transaction. The caller counts it, unless it is counted already."""
    file = await session.get(File, file_id)
    if file is None or file.status != INCOMPLETE:
        raise _given_up(file_id)
    file.filename, file.purpose = filename, purpose
    file.status, file.created_at, file.expires_at = PROCESSED, now, expires_at
    return file


async def find_file(store: Store, owner: Owner, file_id: str) -> File:
    query = visible_files(owner, store.now()).where(File.id == file_id)
    async with store.reading() as session:
        return await find_one(session, query, f"There is no file {file_id[:80]!r}.")


async def list_files(
    store: Store, owner: Owner, cursor: Cursor, purpose: str | None = None, *, of_batches: bool = True
) -> Page[File]:
    """A page of an owner's files, by age; those that batches of messages keep among them or not."""
    query = visible_files(owner, store.now()).where(*given_values((File.purpose, purpose)))
    if not of_batches:
        query = query.where(~_keeping_batch(owner, File.id).exists())
    async with store.reading() as session:
        return await read_page(session, query, cursor, (File.created_at, File.id))


async def delete_file(store: Store, owner: Owner, file_id: str, *, with_batch: bool = False) -> None:
    """Delete an owner's file, also from vector stores. It is gone at once; its content goes in steps, which the sweep
    would end. Raises `ConflictError` where a batch of messages keeps it, unless that is being deleted too
    (`with_batch`)."""
    check_blobs(store, await find_file(store, owner, file_id))
    async with store.transaction() as session:
        batch_id = None if with_batch else await session.scalar(_keeping_batch(owner, file_id).limit(1))
        if batch_id is not None:
            raise ConflictError(f"The file {file_id} belongs to the batch {batch_id}, and goes with it: delete that.")
        await session.execute(update(File).where(File.id == file_id).values(status=INCOMPLETE, expires_at=0))
        removed = await remove_files(session, VectorStoreFile.file_id == file_id, int(store.now()))
    await delete_chunks(store, removed)
    await drop_file(store, file_id)


async def drop_file(store: Store, file_id: str) -> None:
    """Delete a hidden file and its content, in steps of bounded size. Raises `StoreAwayError` before
    anything goes where its content lies at a `store.blobs` that is not configured."""
    async with store.reading() as session:
        found = await session.get(File, file_id)
    if found is not None:
        check_blobs(store, found)
    await delete_content(store, file_id)
    async with store.transaction() as session:
        gone = delete(File).where(File.id == file_id).returning(File.organization_id, File.size, File.counted)
        file = (await session.execute(gone)).one_or_none()
        if file is not None and file.counted:
            await count_file_bytes(session, file.organization_id, -(file.size + ROW_BYTES))


def _given_up(file_id: str) -> NotFoundError:
    return NotFoundError(f"The file {file_id} was given up before its end.")


def _keeping_batch(owner: Owner, file_id: str | InstrumentedAttribute[str]) -> Select[str]:
    """The batch of messages whose requests or results a file is: its client never saw the file."""
    files = (Batch.input_file_id, Batch.output_file_id, Batch.error_file_id)
    is_kept = or_(*(each == file_id for each in files))
    return select(Batch.id).where(
        is_owned_by(owner, Batch), Batch.id.startswith(MESSAGE_BATCH, autoescape=True), is_kept
    )


def visible_files(owner: Owner, now: float) -> Select[File]:
    not_expired = or_(File.expires_at.is_(None), File.expires_at > int(now))
    return owned_by(owner, File).where(File.status == PROCESSED, not_expired)
