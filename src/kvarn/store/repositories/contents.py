"""Contents of files: at `store.blobs`, or in rows of the database, in chunks."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.blobs import CHUNK_BYTES, Blobs
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError, StoreAwayError, StoreError
from kvarn.store.models import File, FileChunk
from kvarn.store.models.files import INCOMPLETE
from kvarn.store.repositories.row_deletion import delete_rows

_CHUNKS_AT_ONCE = 16  # chunks deleted in one transaction
_NAMES_AT_ONCE = 500
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
    async with aclosing(_read_blob(store, file.id, read)) as pieces:
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
        _places_of(store, file.id)


def _places_of(store: Store, file_id: str) -> list[Blobs]:
    """Places of a content, the most likely first."""
    places = [*filter(None, [store.blobs]), *store.old_blobs]
    if not places:
        raise StoreAwayError(f"the content of {file_id} lies outside the database: set store.blobs as it was")
    return places


async def _read_blob(store: Store, file_id: str, begin: int) -> AsyncGenerator[bytes, None]:
    places = _places_of(store, file_id)
    missing: NotFoundError | None = None
    for place in (*places, places[0]):  # where it is moved meanwhile, the first has it in the end
        try:
            async with aclosing(place.read(file_id, begin)) as pieces:
                async for content in pieces:
                    yield content
            return
        except NotFoundError as error:
            missing = error
    if missing is not None:
        raise missing


async def delete_content(store: Store, file_id: str) -> None:
    for place in filter(None, [store.blobs, *store.old_blobs]):
        await place.delete(file_id)
    await _delete_rows(store, file_id)


async def _delete_rows(store: Store, file_id: str) -> None:
    await delete_rows(store, FileChunk, "position", FileChunk.file_id == file_id, at_once=_CHUNKS_AT_ONCE)


async def move_contents(
    store: Store, on_moved: Callable[[File], object] = lambda _: None, *, alone: bool = True
) -> int:
    """Move contents from rows and from `store.old_blobs` to `store.blobs`, one file after another; how many were moved.
    Interrupted, it may be called again: what a file had before goes once its blob is whole and the same. `alone`: no
    other process moves, so that copies which are not whole are of one that died.
    """
    blobs, moved = store.blobs, 0
    if blobs is None:
        return 0
    if alone:
        await blobs.delete_folder(_MOVING)
    async for file in _in_rows(store):
        if file.in_blobs or await _move(store, blobs, file, _read_rows(store, file.id)):
            await _delete_rows(store, file.id)
            on_moved(file)
            moved += 1
    for old in store.old_blobs:
        await _check_apart(blobs, old)
        async for file in _at(store, old):
            if await _move(store, blobs, file, old.read(file.id)):
                await old.delete(file.id)
                on_moved(file)
                moved += 1
    return moved


async def _check_apart(blobs: Blobs, old: Blobs) -> None:
    """Raise `StoreError` where two places are one under two names: a move would delete what it has just written."""
    probe = f"{_MOVING}/{secrets.token_hex(8)}"
    await (await blobs.create(probe)).close()
    is_same = await old.has(probe)
    await blobs.delete(probe)
    if is_same:
        raise StoreError(f"store.old_blobs names {old.url!r}, which is where store.blobs leads: leave it out")


async def count_places(store: Store) -> dict[str, int]:
    """Numbers of the files whose contents lie at each place."""
    counts = {"rows of the database": len([file.id async for file in _in_rows(store)])}
    for old in store.old_blobs:
        counts[old.url] = len([file.id async for file in _at(store, old)])
    if store.blobs is not None:
        counts[store.blobs.url] = len([file.id async for file in _at(store, store.blobs)])
    return counts


async def _in_rows(store: Store) -> AsyncGenerator[File, None]:
    """Files that are whole and have rows."""
    last = ""
    while True:
        following = select(func.min(FileChunk.file_id)).where(FileChunk.file_id > last)
        async with store.reading() as session:
            file_id = await session.scalar(following)
            if file_id is None:
                return
            file = await session.get(File, file_id)
        last = file_id
        if file is not None and file.status != INCOMPLETE:  # else it is being written, or deleted
            yield file


async def _at(store: Store, place: Blobs) -> AsyncGenerator[File, None]:
    """Files that are whole and have a blob at a place."""
    names = await place.names()
    for begin in range(0, len(names), _NAMES_AT_ONCE):
        named = File.id.in_(names[begin : begin + _NAMES_AT_ONCE])
        async with store.reading() as session:
            found = list(await session.scalars(select(File).where(named, File.in_blobs, File.status != INCOMPLETE)))
        for file in found:
            yield file


async def _move(store: Store, blobs: Blobs, file: File, content: AsyncGenerator[bytes, None]) -> bool:
    """Copy a file's content; False where it was moved or deleted meanwhile. The copy has a name of its own until it is
    whole."""
    copy = f"{_MOVING}/{file.id}.{secrets.token_hex(8)}"
    try:
        if await _copy(store, blobs, file, copy, content):
            return True
    except NotFoundError:
        pass
    except BaseException:
        with suppress(StoreAwayError):
            await asyncio.shield(blobs.delete(copy))
        raise
    await blobs.delete(copy)
    return False


async def _copy(store: Store, blobs: Blobs, file: File, name: str, content: AsyncGenerator[bytes, None]) -> bool:
    writer, size, digest = await blobs.create(name), 0, hashlib.sha256()
    try:
        async with aclosing(content):
            async for piece in content:
                await writer.write(piece)
                digest.update(piece)
                size += len(piece)
    finally:
        await writer.close()
    copied = hashlib.sha256()
    async for piece in blobs.read(name):
        copied.update(piece)
    if copied.digest() != digest.digest():
        raise StoreAwayError(f"the copy of {file.id} at {blobs.url} is not what was written: it stays where it is")
    if size != file.size:
        return False
    await blobs.rename(name, file.id)  # not in the transaction: a bucket copies, for longer than a writer may take
    same_place = File.in_blobs if file.in_blobs else ~File.in_blobs
    there = (File.id == file.id) & (File.status != INCOMPLETE)
    async with store.transaction() as session:
        query = update(File).where(there, same_place).values(in_blobs=True).returning(File.id)
        is_moved = await session.scalar(query) is not None
        is_there = is_moved or await session.scalar(select(File.id).where(there)) is not None
    if not is_there:  # else another move was faster, whose copy is the same
        await blobs.delete(file.id)
    return is_moved


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
