"""Writing a file into the database as its content comes, with a megabyte in memory at most."""

from __future__ import annotations

import asyncio

from kvarn.store.engine import Store
from kvarn.store.owner import Owner
from kvarn.store.repositories.files.files import CHUNK_BYTES, add_chunks, begin_file, drop_file

_FLUSH_CHUNKS = 4
"""Chunks written in one transaction."""
_ABANDONED_S = 24 * 3600
"""A file that was not published a day after it was begun belongs to a process that died."""


class FileWriter:
    """A file that nobody sees yet. Write it, `finish` it and publish it (`publish_file`), or `discard` it.

    Args:
        owner: Whose file it will be.
        max_bytes: Bytes that its organisation may store, this file included; None: as many as it needs.
        counted: Whether it counts before it is published.
    """

    def __init__(self, store: Store, owner: Owner, max_bytes: int | None = None, *, counted: bool = True) -> None:
        self.size = 0
        """Bytes taken so far."""
        self._store = store
        self._owner = owner
        self._most = max_bytes
        self._counted = counted
        self._id: str | None = None
        self._buffer = bytearray()
        self._position = 0

    async def write(self, data: bytes | memoryview) -> None:
        """Append to the file.

        Raises:
            StorageFullError: Its organisation would store more than it may.
        """
        self.size += len(data)
        self._buffer += data
        while len(self._buffer) >= _FLUSH_CHUNKS * CHUNK_BYTES:
            await self._flush(_FLUSH_CHUNKS)

    async def finish(self) -> str:
        """Write what is left; the file's id, to be published. Raises as `write` does."""
        await self._flush(-(-len(self._buffer) // CHUNK_BYTES))
        assert self._id is not None
        return self._id

    async def discard(self) -> None:
        """Leave nothing of it in the database, even where the caller is being cancelled."""
        if self._id is not None:
            await asyncio.shield(drop_file(self._store, self._id))

    async def _flush(self, count: int) -> None:
        if self._id is None:
            given_up = int(self._store.now()) + _ABANDONED_S
            self._id = await begin_file(self._store, self._owner, given_up, self._most, counted=self._counted)
        chunks = [bytes(self._buffer[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES]) for i in range(count)]
        if chunks:
            await add_chunks(self._store, self._owner, self._id, self._position, chunks, self._most)
        self._position += count
        del self._buffer[: count * CHUNK_BYTES]
