"""The database in a file, and back: a copy of SQLite's, or a dump of PostgreSQL's."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import inspect, text
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.backups import postgres
from kvarn.backups.archive import DATABASES
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.migrate import SchemaState, state_in
from kvarn.store.models import Base
from kvarn.store.repositories import chunk_halfvec
from kvarn.store.repositories.contents import list_blobs

_LONG_S = 3600.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A database as it was at one moment."""

    file: Path
    state: SchemaState
    blobs: list[tuple[str, int]]
    """Ids and sizes of the contents outside the database."""


def kind_of(store: Store) -> str:
    return "sqlite" if store.is_sqlite else "postgresql"


async def take_snapshot(store: Store, folder: Path) -> Snapshot:
    """Write the database into a folder while others write to it. Raises `StoreError`."""
    file = folder / DATABASES[kind_of(store)]
    if store.is_sqlite:
        await asyncio.to_thread(_copy_sqlite, Path(str(store.url.database)), file)
        copy = Store(store.url.set(database=str(file)), timeout_s=_LONG_S)
        try:
            async with copy.reading() as session:
                found = await _snapshot_of(session, file)
        finally:
            await copy.close()
        await asyncio.to_thread(_close_sqlite, file)
        return found
    async with store.migrating() as connection:
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        name = str(await connection.scalar(text("SELECT pg_export_snapshot()")))
        await asyncio.to_thread(postgres.dump, store.url, name, file)
        session = AsyncSession(bind=connection)
        return await _snapshot_of(session, file)


async def _snapshot_of(session: AsyncSession, file: Path) -> Snapshot:
    state = await state_in(session)
    return Snapshot(file, state, await list_blobs(session) if state.version is not None else [])


async def load(store: Store, file: Path) -> None:
    """Put the database of a file in the place of what the store's has, or leave it as it was. Raises `StoreError`."""
    if store.is_sqlite:
        await store.close()  # its connections would be others that use the file
        await asyncio.to_thread(_load_sqlite, file, Path(str(store.url.database)))
        return
    async with store.migrating() as connection:
        there = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    known = {"alembic_version", *Base.metadata.tables, *chunk_halfvec.TABLES}
    await asyncio.to_thread(postgres.load, store.url, file, sorted(known.intersection(there)))


def _copy_sqlite(source: Path, target: Path) -> None:
    """One step is one transaction that reads: it sees no half of what others write, and they go on."""
    try:
        there = f"{source.absolute().as_uri()}?mode=rw"  # one that is missing is not made
        with closing(sqlite3.connect(there, uri=True)) as reading, closing(sqlite3.connect(target)) as writing:
            reading.backup(writing)
    except sqlite3.Error as error:
        raise StoreError(f"the database {source} cannot be copied: {error}; see store.url") from error


def _close_sqlite(file: Path) -> None:
    """Check a copy, and have all of it in one file."""
    with closing(sqlite3.connect(file)) as copy:
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        copy.execute("PRAGMA journal_mode=DELETE")
    if found != "ok":
        raise StoreError(f"the database is damaged: {found}; restore an older backup")


def _load_sqlite(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as reading, closing(sqlite3.connect(target, timeout=0)) as writing:
        try:
            writing.execute("PRAGMA locking_mode=EXCLUSIVE")
            writing.execute("BEGIN IMMEDIATE")  # refused while anybody else has it open
            writing.rollback()
            reading.backup(writing)
        except sqlite3.OperationalError as error:
            raise StoreError(f"{target} cannot be replaced: {error}; stop the gateways that use it") from error
