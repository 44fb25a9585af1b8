"""Contents of files outside the database: in a folder, a bucket, whatever fsspec reaches.

A blob is written once, under its file's id, before anybody sees the file.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL

from kvarn.config.addresses import without_password
from kvarn.store.directories import sync_directory
from kvarn.store.errors import DiskFullError, NotFoundError, StoreAwayError, StoreError

ResultT = TypeVar("ResultT")

CHUNK_BYTES = 256 * 1024
_PART_BYTES = 8 << 20
"""Part of an upload to a bucket: each that is being written holds so much memory."""
IN_DATABASE = "database"
_FOLDER = ".files"  # ending of the folder beside SQLite's database


def blobs_of(setting: str | None, database: URL) -> Blobs | None:
    """The place that the setting `store.blobs` names; None: rows of the database. Raises `StoreError` where it cannot
    be used."""
    if setting == IN_DATABASE or (setting is None and database.get_backend_name() != "sqlite"):
        return None
    if setting is None:
        return Blobs(str(_beside(database)))
    return _opened(setting)


def old_blobs_of(settings: Sequence[str], blobs: Blobs | None, database: URL) -> tuple[Blobs, ...]:
    """The places that `store.old_blobs` names, and the folder beside SQLite's database where it is no longer the place.
    Raises as `blobs_of` does."""
    found = [_opened(setting) for setting in settings]
    if database.get_backend_name() == "sqlite":
        beside = Blobs(str(_beside(database)))
        is_old = _beside(database).is_dir() and (blobs is None or blobs.open() != beside.open())
        found += [beside] if is_old else []
    return tuple(found)


def _beside(database: URL) -> Path:
    return Path(str(database.database)).with_suffix(_FOLDER)


def _opened(setting: str) -> Blobs:
    blobs = Blobs(setting)
    blobs.open()
    return blobs


class Blobs:
    """A place for contents, a folder or a URL of fsspec's. Its calls block, so they run in threads."""

    def __init__(self, url: str) -> None:
        self.url = without_password(url)
        """Name of the place, as it may be shown."""
        self._address = url
        self._files: tuple[Any, str] | None = None

    def open(self) -> tuple[Any, str]:
        """The file system and the folder in it, made if missing. fsspec is imported here: most starts need no file."""
        if self._files is None:
            from fsspec.core import url_to_fs

            try:
                files, root = url_to_fs(self._address, use_listings_cache=False)  # others write there too
                if self._is_local(files):
                    Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
            except (ImportError, ValueError, OSError) as error:
                raise StoreError(f"store.blobs names {self.url!r}, which cannot be used: {error}") from error
            self._files = files, root
        return self._files

    async def create(self, name: str) -> BlobWriter:
        """Begin a blob, in place of one of that name."""

        def create() -> BlobWriter:
            files, root = self.open()
            folder = Path(root) if self._is_local(files) else None
            if folder is not None:
                if "/" in name:
                    (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
                (folder / name).touch(mode=0o600)
            return BlobWriter(files.open(f"{root}/{name}", "wb", block_size=_PART_BYTES), folder)

        # Closed before its creator deletes it: one that is closed after that may write itself anew.
        return await _in_thread(create, undo=lambda writer: writer.file.close())

    async def read(self, name: str, begin: int = 0) -> AsyncGenerator[bytes, None]:
        """A blob's content from a byte on, piece by piece. Raises `NotFoundError` where there is none."""

        def start() -> Any:
            files, root = self.open()
            try:
                opened = files.open(f"{root}/{name}", "rb", block_size=4 * CHUNK_BYTES)
            except FileNotFoundError:
                raise NotFoundError(f"The content of {name} is not at store.blobs.") from None
            opened.seek(begin)
            return opened

        file = await _in_thread(start)
        try:
            while data := await _in_thread(lambda: file.read(CHUNK_BYTES)):
                yield data
        finally:
            await _in_thread(file.close)

    def open_reader(self, name: str) -> Any:
        """A blob's content as a file, for threads. Raises OSError, also where there is none."""
        files, root = self.open()
        return files.open(f"{root}/{name}", "rb")

    @property
    def is_folder(self) -> bool:
        return self._is_local(self.open()[0])

    async def has(self, name: str) -> bool:
        def has() -> bool:
            files, root = self.open()
            return bool(files.exists(f"{root}/{name}"))

        return await _in_thread(has)

    async def names(self) -> list[str]:
        def names() -> list[str]:
            files, root = self.open()
            try:
                found = files.ls(root, detail=True)
            except FileNotFoundError:  # a bucket has no empty folders
                return []
            return [each["name"].rpartition("/")[2] for each in found if each["type"] == "file"]

        return await _in_thread(names)

    async def rename(self, name: str, to: str) -> None:
        """Give a blob another name, in place of one that has it."""

        def rename() -> None:
            files, root = self.open()
            files.mv(f"{root}/{name}", f"{root}/{to}")
            if self._is_local(files):
                sync_directory(Path(root))

        await _in_thread(rename)

    async def delete(self, name: str) -> None:
        """Delete a blob; nothing happens where there is none."""

        def delete() -> None:
            files, root = self.open()
            with suppress(FileNotFoundError):
                files.rm_file(f"{root}/{name}")

        await _in_thread(delete)

    async def delete_folder(self, name: str) -> None:
        def delete() -> None:
            files, root = self.open()
            with suppress(FileNotFoundError):
                files.rm(f"{root}/{name}", recursive=True)

        await _in_thread(delete)

    @staticmethod
    def _is_local(files: Any) -> bool:
        return "file" in (files.protocol if isinstance(files.protocol, tuple) else (files.protocol,))


class BlobWriter:
    def __init__(self, file: Any, folder: Path | None) -> None:
        self.file = file
        self._folder = folder

    async def write(self, data: bytes) -> None:
        await _in_thread(lambda: self.file.write(data))

    async def close(self) -> None:
        """End it; it outlives a power failure then. May be called again."""

        def close() -> None:
            if self.file.closed:
                return
            if self._folder is not None:
                self.file.flush()
                os.fsync(self.file.fileno())
            self.file.close()
            if self._folder is not None:
                sync_directory(self._folder)

        await _in_thread(close)


async def _in_thread(work: Callable[[], ResultT], undo: Callable[[ResultT], object] = lambda _: None) -> ResultT:
    """Do blocking work to its end, also where the caller is cancelled meanwhile: its result is undone then."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if task.exception() is None:
            await asyncio.to_thread(undo, task.result())
        raise
    except StoreError:
        raise
    except OSError as error:
        kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreAwayError
        raise kind(f"store.blobs cannot be used: {error}") from error
    except Exception as error:  # each file system has errors of its own
        raise StoreAwayError(f"store.blobs cannot be used: {error}") from error
