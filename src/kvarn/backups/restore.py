"""Restoring a backup."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvarn.backups.archive import BLOBS, DATABASES, PROMPT_KEYS, Manifest, unpack
from kvarn.backups.databases import kind_of, load
from kvarn.backups.write import fingerprints
from kvarn.store import migrate
from kvarn.store.blobs import CHUNK_BYTES, Blobs
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: Manifest
    missing: tuple[str, ...]
    """Lines that say what is to be done by hand."""


async def restore(store: Store, path: Path, *, folder: Path, prompt_keys: Path, force: bool = False) -> Restored:
    """Put a backup in the place of a database without a schema, or with `force` of any.

    Args:
        store: The database; no gateway may use it.
        path: The backup.
        folder: Where it is unpacked meanwhile.
        prompt_keys: The file of the keys that seal kept prompts.
        force: Replace a database that has something in it.

    Raises:
        StoreError: The backup is damaged or not of this kind of database, or of a newer Kvarn. Nothing was changed, but
            for contents of files and keys, which are added first.
    """
    if not await asyncio.to_thread(path.is_file):
        raise StoreError(f"there is no file {path}: name a backup")
    _check_replaceable(store, await _read_state(store), force=force)
    with tempfile.TemporaryDirectory(prefix=".kvarn-", dir=folder) as unpacked:
        manifest = await asyncio.to_thread(unpack, path, Path(unpacked))
        _check(store, manifest)
        if blobs := [name for name in manifest.entries if name.startswith(BLOBS)]:
            assert store.blobs is not None
            for name in blobs:
                await _write_blob(store.blobs, name.removeprefix(BLOBS), Path(unpacked) / name)
        if PROMPT_KEYS in manifest.entries:
            await asyncio.to_thread(_add_keys, Path(unpacked) / PROMPT_KEYS, prompt_keys)
        await load(store, Path(unpacked) / DATABASES[manifest.database])
    return Restored(manifest, tuple(_missing(store, manifest, prompt_keys)))


async def _read_state(store: Store) -> migrate.SchemaState:
    try:
        return await migrate.read_state(store)
    except StoreError as error:
        cause = getattr(error.__cause__, "orig", None) or error.__cause__
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
            raise
        file = store.url.database
        raise StoreError(
            f"{file} is damaged ({cause}): move it away, with {file}-wal and {file}-shm where they are there, and "
            "restore again"
        ) from error


def _check_replaceable(store: Store, state: migrate.SchemaState, *, force: bool) -> None:
    if state.version is None:
        return
    if not force:
        raise StoreError("the database is not empty: --force replaces all that is in it")
    if not store.is_sqlite and state.version > migrate.head():  # SQLite's is replaced as a whole, whatever is in it
        raise StoreError(
            f"the database's schema is at {state.version}, and this Kvarn, which knows {migrate.head()} at most, would "
            "leave tables of it behind: restore into an empty database, or with the Kvarn that upgraded this one"
        )


def _check(store: Store, manifest: Manifest) -> None:
    if manifest.database not in DATABASES or DATABASES[manifest.database] not in manifest.entries:
        raise StoreError("the backup holds no database that this Kvarn knows")
    if manifest.database != kind_of(store):
        raise StoreError(f"the backup is of {manifest.database}, and store.url names {kind_of(store)}")
    state, newest = migrate.SchemaState(manifest.schema, manifest.compatible_since), migrate.head()
    if manifest.schema > newest and not state.is_newer_for(newest):
        raise StoreError(
            f"the backup was made by Kvarn {manifest.kvarn}, whose schema {manifest.schema} this one does not know "
            f"({newest} at most): restore it with that version"
        )
    if store.blobs is None and any(name.startswith(BLOBS) for name in manifest.entries):
        raise StoreError("the backup has contents of files: name a folder or a bucket for them (store.blobs)")


async def _write_blob(blobs: Blobs, name: str, source: Path) -> None:
    writer = await blobs.create(name)
    try:
        with source.open("rb") as file:
            while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                await writer.write(data)
    finally:
        await writer.close()


def _add_keys(source: Path, prompt_keys: Path) -> None:
    """Add keys to those that are there: the first seals, all open."""
    there = prompt_keys.read_text().split() if prompt_keys.exists() else []
    draft = prompt_keys.with_name(f".{prompt_keys.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text("".join(f"{key}\n" for key in dict.fromkeys([*there, *source.read_text().split()])))
    draft.replace(prompt_keys)


def _missing(store: Store, manifest: Manifest, prompt_keys: Path) -> list[str]:
    lines = []
    if set(manifest.prompt_keys) - set(fingerprints(prompt_keys)):
        lines.append(
            f"kept prompts cannot be opened: copy the key file of the old server to {prompt_keys} "
            "(safety.prompt_key_file)"
        )
    if manifest.blobs_at is not None and (store.blobs is None or store.blobs.url != manifest.blobs_at):
        lines.append(f"contents of files are not in the backup: they were at {manifest.blobs_at} (store.blobs)")
    if manifest.lost_files:
        lines.append(
            f"{len(manifest.lost_files)} files have no content, most often since they were deleted while the backup "
            f"was made: {', '.join(manifest.lost_files[:3])}{' ...' if len(manifest.lost_files) > 3 else ''}"
        )
    return lines
