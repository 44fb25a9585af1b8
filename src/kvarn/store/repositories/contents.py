"""Contents of files: at `store.blobs`, or in rows of the database, in chunks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.blobs import CHUNK_BYTES, Blobs
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError, StoreAwayError
from kvarn.store.models import File, FileChunk
from kvarn.store.models.files import INCOMPLETE
from kvarn.store.repositories.row_deletion import delete_rows

_CHUNKS_AT_ONCE = 16  # chunks deleted in one transaction
_MOVING = "moving"
"""Folder of copies that are not whole yet."""


def add_chunks(session: AsyncSession, file_id: str, position: int, data: bytes) -> int:
    """Append to the rows of a file, whose chunks all have `CHUNK_BYTES` but the last; how many were added."""
    chunks = [data[begin : begin + CHUNK_BYTES] for begin in range(0, len(data), CHUNK_BYTES)]
    session.add_all(
        [FileChunk(file_id=file_id, position=position + i, content=chunk) for i, chunk in enumerate(chunks)]
    )
    return len(chunks)


async def read_content(store: Store, file: File) -> AsyncGenerator[bytes, None]:
    """The content of a file, chunk by chunk; between two chunks no connection is held. Raises `NotFoundError` where the
    file is deleted meanwhile."""
    read = 0
    if not file.in_blobs:
        async with aclosing(_read_rows(store, file.id)) as chunks:
            async for content in chunks:
                yield content
                read += len(content)
    if read == file.size:
        return
    async with store.reading() as session:
        moved = await session.scalar(select(File.in_blobs).where(File.id == file.id))
    if not moved:
        raise NotFoundError(f"The file {file.id} was deleted while it was read.")
    async with aclosing(_blobs_of(store, file.id).read(file.id, read)) as pieces:
        async for content in pieces:
            yield content
            read += len(content)
    if read != file.size:
        raise StoreAwayError(f"the content of {file.id} at store.blobs has {read} bytes, not {file.size}")


async def list_blobs(session: AsyncSession) -> list[tuple[str, int]]:
    """Ids and sizes of the contents that lie outside the database, of files that are whole."""
    is_there = File.in_blobs & (File.size > 0) & (File.status != INCOMPLETE)
    query = select(File.id, File.size).where(is_there).order_by(File.id)
    return [(file_id, size) for file_id, size in await session.execute(query)]


def check_blobs(store: Store, file: File) -> None:
    """Raise `StoreAwayError` where a content would stay behind: it lies at a `store.blobs` that is not configured."""
    if file.in_blobs and file.size:
        _blobs_of(store, file.id)


def _blobs_of(store: Store, file_id: str) -> Blobs:
    if store.blobs is None:
        raise StoreAwayError(f"the content of {file_id} lies outside the database: set store.blobs as it was")
    return store.blobs


async def delete_content(store: Store, file_id: str) -> None:
    if store.blobs is not None:
        await store.blobs.delete(file_id)
    await _delete_rows(store, file_id)


async def _delete_rows(store: Store, file_id: str) -> None:
    await delete_rows(store, FileChunk, "position", FileChunk.file_id == file_id, at_once=_CHUNKS_AT_ONCE)


async def move_contents(store: Store) -> int:
    """Move contents from rows to `store.blobs`, one file after another; how many were moved. Interrupted, it may be
    called again: a file's rows go once its blob is whole.
    """
    blobs, moved, last = store.blobs, 0, ""
    if blobs is None:
        return 0
    await blobs.delete_folder(_MOVING)  # copies of a process that died
    while True:
        following = select(func.min(FileChunk.file_id)).where(FileChunk.file_id > last)
        async with store.reading() as session:
            file_id = await session.scalar(following)
            if file_id is None:
                return moved
            file = await session.get(File, file_id)
        last = file_id
        if file is None or file.status == INCOMPLETE:
            continue  # it is being written, or deleted
        if file.in_blobs or await _move(store, blobs, file):
            await _delete_rows(store, file_id)
            moved += 1


async def _move(store: Store, blobs: Blobs, file: File) -> bool:
    """Copy a file's content; False where it was moved or deleted meanwhile. The copy has a name of its own until the
    file's row is this move's alone: a late move deletes nothing else."""
    copy = f"{_MOVING}/{file.id}.{secrets.token_hex(8)}"
    try:
        if await _copy(store, blobs, file, copy):
            return True
    except BaseException:
        with suppress(StoreAwayError):
            await asyncio.shield(blobs.delete(copy))
        raise
    await blobs.delete(copy)
    return False


async def _copy(store: Store, blobs: Blobs, file: File, name: str) -> bool:
    writer, size = await blobs.create(name), 0
    try:
        async with aclosing(_read_rows(store, file.id)) as chunks:
            async for content in chunks:
                await writer.write(content)
                size += len(content)
    finally:
        await writer.close()
    whole = (File.id == file.id) & (File.size == size) & (File.status != INCOMPLETE) & ~File.in_blobs
    async with store.transaction() as session:
        if await session.scalar(update(File).where(whole).values(in_blobs=True).returning(File.id)) is None:
            return False
        await blobs.rename(name, file.id)
    return True


async def _read_rows(store: Store, file_id: str) -> AsyncGenerator[bytes, None]:
    position = 0
    while True:
        async with store.reading() as session:
            query = select(FileChunk.content).where(FileChunk.file_id == file_id, FileChunk.position == position)
            content = await session.scalar(query)
        if content is None:
            return
        yield content
        position += 1
