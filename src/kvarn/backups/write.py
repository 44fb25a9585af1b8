"""Making a backup."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from pathlib import Path

import kvarn
from kvarn.backups.archive import BLOBS, PROMPT_KEYS, ArchiveWriter, Manifest
from kvarn.backups.databases import kind_of, take_snapshot
from kvarn.store.blobs import Blobs
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError


async def make_backup(
    store: Store, path: Path, *, prompt_keys: Path, with_keys: bool = False, with_blobs: bool | None = None
) -> Manifest:
    """Write the database and what belongs to it into a file, while gateways serve.

    Args:
        store: The database.
        path: The file, which must not be there; compressed if it ends in `.gz` or `.tgz`.
        prompt_keys: The file of the keys that seal kept prompts.
        with_keys: Put those into the archive, which then opens the prompts.
        with_blobs: Put contents of files into it. None: those in a folder, not those in a bucket.

    Raises:
        StoreError: It cannot be made; the file is not there then.
    """
    try:
        with ArchiveWriter(path) as archive, tempfile.TemporaryDirectory(prefix=".kvarn-", dir=path.parent) as folder:
            snapshot = await take_snapshot(store, Path(folder))
            if snapshot.state.version is None:
                raise StoreError("there is nothing to back up: the database has no schema; see store.url")
            await asyncio.to_thread(_add_file, archive, snapshot.file.name, snapshot.file)
            blobs = store.blobs if snapshot.blobs else None
            if blobs is None and snapshot.blobs:
                raise StoreError("contents of files lie outside the database: set store.blobs as the servers have it")
            lost: list[str] = []
            if blobs is not None and (blobs.is_folder if with_blobs is None else with_blobs):
                lost = await asyncio.to_thread(_add_blobs, archive, blobs, snapshot.blobs)
                blobs = None
            known_keys = fingerprints(prompt_keys)
            if with_keys and known_keys:
                await asyncio.to_thread(_add_file, archive, PROMPT_KEYS, prompt_keys)
            manifest = Manifest(
                kvarn=kvarn.__version__,
                schema=snapshot.state.version,
                compatible_since=snapshot.state.compatible_since,
                database=kind_of(store),
                made_at=int(store.now()),
                blobs_at=None if blobs is None else blobs.url,
                lost_files=tuple(lost),
                prompt_keys=known_keys,
                entries=archive.entries,
            )
            await asyncio.to_thread(archive.finish, manifest)
            return manifest
    except OSError as error:
        raise StoreError(f"cannot write the backup {path}: {error.strerror or error}") from error


def fingerprints(prompt_keys: Path) -> tuple[str, ...]:
    """Digests of the keys in a file, by which they are known without being told."""
    if not prompt_keys.exists():
        return ()
    return tuple(hashlib.sha256(key).hexdigest()[:16] for key in prompt_keys.read_bytes().split())


def _add_file(archive: ArchiveWriter, name: str, path: Path) -> None:
    with path.open("rb") as file:
        archive.add(name, file, path.stat().st_size)


def _add_blobs(archive: ArchiveWriter, blobs: Blobs, wanted: list[tuple[str, int]]) -> list[str]:
    """Add contents; the ids of those that could not be read whole."""
    try:
        return _read_blobs(archive, blobs, wanted)
    except (OSError, StoreError):
        raise
    except Exception as error:  # each file system has errors of its own
        raise StoreError(f"contents at {blobs.url} cannot be read: {error}") from error


def _read_blobs(archive: ArchiveWriter, blobs: Blobs, wanted: list[tuple[str, int]]) -> list[str]:
    lost = []
    for file_id, size in wanted:
        try:
            file = blobs.open_reader(file_id)
        except FileNotFoundError:
            lost.append(file_id)
            continue
        with file:
            if file.seek(0, 2) != size:
                lost.append(file_id)
                continue
            file.seek(0)
            archive.add(f"{BLOBS}{file_id}", file, size)
    return lost
