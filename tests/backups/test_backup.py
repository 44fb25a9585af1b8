"""Backups of a database that is written to, on both databases: made, checked and restored."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from cryptography.fernet import Fernet
from sqlalchemy import URL, make_url, text

import kvarn.backups.restore
from kvarn.backups.archive import MANIFEST, Manifest, unpack
from kvarn.backups.restore import restore
from kvarn.backups.write import make_backup
from kvarn.store import migrate
from kvarn.store.blobs import Blobs
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.models import File
from kvarn.store.owner import Owner, Role
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import FileWriter, delete_file, find_file, publish_file
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key
from kvarn.store.repositories.tenants.principals import find_grant
from kvarn.store.repositories.usage.events import record
from new_tenants import create_organization
from sample_usage import make_event

CONTENT = bytes(range(256)) * 2048


@pytest.fixture
async def empty(empty_database_url: str, tmp_path: Path) -> AsyncGenerator[Store, None]:
    """A database without a schema, where a backup is restored."""
    url = make_url(empty_database_url)
    driver = "sqlite+aiosqlite" if url.get_backend_name() == "sqlite" else "postgresql+asyncpg"
    made = Store(url.set(drivername=driver), timeout_s=20, blobs=Blobs(str(tmp_path / "restored")))
    yield made
    await made.close()


async def keep(store: Store, owner: Owner) -> File:
    async with FileWriter(store, owner) as writer:
        await writer.write(CONTENT)
        file_id = await writer.finish()
    async with store.transaction() as session:
        return await publish_file(session, file_id, filename="a", purpose="batch", now=1, expires_at=None)


async def back_up(store: Store, folder: Path, name: str = "backup.tar", **options: bool) -> Path:
    if not store.is_sqlite and shutil.which("pg_dump") is None:
        pytest.skip("pg_dump is not installed: apt-get install postgresql-client")
    path = folder / name
    await make_backup(store, path, prompt_keys=folder / "prompts.key", **options)
    return path


async def put_back(store: Store, path: Path, **options: bool) -> tuple[str, ...]:
    folder = path.parent
    return (await restore(store, path, folder=folder, prompt_keys=folder / "new-prompts.key", **options)).missing


@asynccontextmanager
async def usage_written(store: Store) -> AsyncGenerator[asyncio.Event, None]:
    """Events of usage go to the ledger until the block ends; the event is set once some have."""
    stopping, begun = asyncio.Event(), asyncio.Event()

    async def write(worker: int) -> None:
        for number in range(100_000):
            await record(store, [make_event(1000 * number + 10 * worker + line) for line in range(3)])
            if number == 3:
                begun.set()
            if stopping.is_set():
                return

    async with asyncio.TaskGroup() as group:
        for worker in range(3):
            group.create_task(write(worker))
        yield begun
        stopping.set()


def drafts(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if each.name.startswith(".")]


def list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def number(store: Store, query: str) -> int:
    async with store.reading() as session:
        return int(await session.scalar(text(query)) or 0)


async def test_a_backup_made_under_load_has_no_half_of_anything_and_its_keys_work(
    store: Store, empty: Store, tmp_path: Path
) -> None:
    store.blobs = Blobs(str(tmp_path / "files"))
    owner = (await create_organization(store, "red")).owner
    file, gone = await keep(store, owner), await keep(store, owner)
    async with audited_change(store, Actor("test")) as change:
        key, _ = await add_key(change, owner.organization_id, owner.project_id, KeyRequest(name="k", role=Role.MEMBER))
    await store.blobs.delete(gone.id)
    async with usage_written(store) as begun:
        await begun.wait()
        path = await back_up(store, tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    (missing,) = await put_back(empty, path)
    assert gone.id in missing and "1 files have no content" in missing
    await migrate.check(empty)
    events = await number(empty, "SELECT count(*) FROM usage_events")
    assert 0 < events < await number(store, "SELECT count(*) FROM usage_events"), "written on meanwhile"
    assert events % 3 == 0 and events == await number(empty, "SELECT sum(requests) FROM usage_hours")
    async with empty.reading() as session:
        grant = await find_grant(session, key.lookup, int(empty.now()))
    assert grant is not None and grant.principal is not None and grant.principal.owner == owner
    found = await find_file(empty, owner, file.id)
    assert b"".join([piece async for piece in read_content(empty, found)]) == CONTENT
    assert not drafts(tmp_path), "nothing is left behind"


async def test_what_is_there_is_replaced_only_by_force(store: Store, empty: Store, tmp_path: Path) -> None:
    await create_organization(store, "red")
    path = await back_up(store, tmp_path, "backup.tar.gz")
    await migrate.upgrade(empty)
    await create_organization(empty, "blue")
    with pytest.raises(StoreError, match="there is no file"):
        await put_back(empty, tmp_path / "another.tar")
    with pytest.raises(StoreError, match="not empty: --force"):
        await put_back(empty, path)
    assert await number(empty, "SELECT count(*) FROM organizations WHERE name = 'blue'") == 1
    await put_back(empty, path, force=True)
    assert await number(empty, "SELECT count(*) FROM organizations WHERE name = 'blue'") == 0
    assert await number(empty, "SELECT count(*) FROM organizations WHERE name = 'red'") == 1
    with pytest.raises(StoreError, match="is there already"):
        await back_up(store, tmp_path, "backup.tar.gz")


async def test_a_backup_of_an_older_schema_is_upgraded_and_one_of_a_newer_is_refused(
    store: Store, empty: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate.downgrade(store, "0.1")
    old = await back_up(store, tmp_path)
    await put_back(empty, old)
    await migrate.upgrade(empty)
    await migrate.check(empty)
    await migrate.upgrade(store)
    new = await back_up(store, tmp_path, "new.tar")
    monkeypatch.setattr(kvarn.backups.restore.migrate, "head", lambda: "0011")
    with pytest.raises(StoreError, match=r"made by Kvarn .* restore it with that version"):
        await put_back(store if store.is_sqlite else empty, new, force=True)
    if not store.is_sqlite:
        with pytest.raises(StoreError, match="leave tables of it behind: restore into an empty database"):
            await put_back(store, old, force=True)


async def test_keys_of_prompts_are_in_a_backup_only_where_that_was_asked_for(
    store: Store, empty: Store, tmp_path: Path
) -> None:
    mine, another = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    (tmp_path / "prompts.key").write_text(f"{mine}\n")
    without = await back_up(store, tmp_path)
    assert mine.encode() not in without.read_bytes()
    (missing,) = await put_back(empty, without)
    assert "copy the key file of the old server to" in missing
    (tmp_path / "new-prompts.key").write_text(f"{another}\n")
    assert await put_back(empty, await back_up(store, tmp_path, "keys.tar", with_keys=True), force=True) == ()
    assert (tmp_path / "new-prompts.key").read_text().split() == [another, mine], "the first one seals"
    assert (tmp_path / "new-prompts.key").stat().st_mode & 0o777 == 0o600


async def test_contents_in_a_bucket_are_left_out_unless_they_are_asked_for(
    store: Store, empty: Store, tmp_path: Path
) -> None:
    store.blobs = Blobs("memory://kvarn-backup")
    owner = (await create_organization(store, "red")).owner
    file = await keep(store, owner)
    (missing,) = await put_back(empty, await back_up(store, tmp_path))
    assert "they were at memory://kvarn-backup" in missing
    assert await put_back(empty, await back_up(store, tmp_path, "whole.tar", with_blobs=True), force=True) == ()
    assert (tmp_path / "restored" / file.id).read_bytes() == CONTENT
    empty.blobs = None
    with pytest.raises(StoreError, match=r"name a folder or a bucket for them \(store\.blobs\)"):
        await put_back(empty, tmp_path / "whole.tar", force=True)
    await delete_file(store, owner, file.id)


@pytest.fixture
def sqlite_file(tmp_path: Path, prepared_sqlite: Path) -> URL:
    shutil.copyfile(prepared_sqlite, tmp_path / "kvarn.db")
    return make_url(f"sqlite+aiosqlite:///{tmp_path}/kvarn.db")


async def test_a_database_that_a_server_has_open_is_not_replaced(tmp_path: Path, sqlite_file: URL) -> None:
    store, running = Store(sqlite_file), Store(sqlite_file)
    path = await back_up(store, tmp_path)
    await number(running, "SELECT 1")
    with pytest.raises(StoreError, match="stop the gateways"):
        await put_back(store, path, force=True)
    await running.close()
    await put_back(store, path, force=True)
    await store.close()


@pytest.mark.parametrize("content", [b"x" * 100_000, b"SQLite format 3\0cut short"])
async def test_a_damaged_database_is_to_be_moved_away(tmp_path: Path, archive: Path, content: bytes) -> None:
    (tmp_path / "kvarn.db").write_bytes(content)
    store = Store(make_url(f"sqlite+aiosqlite:///{tmp_path}/kvarn.db"))
    with pytest.raises(StoreError, match=r"kvarn\.db is damaged .*: move it away, with .*kvarn\.db-wal"):
        await put_back(store, archive, force=True)
    (tmp_path / "kvarn.db").unlink()
    await put_back(store, archive)
    assert (await migrate.read_state(store)).version == migrate.head()
    await store.close()


@pytest.fixture
async def archive(tmp_path: Path, sqlite_file: URL) -> Path:
    """A small one."""
    store = Store(sqlite_file)
    path = await back_up(store, tmp_path)
    await store.close()
    return path


def rewritten(path: Path, **changes: bytes | None) -> Path:
    """The archive with other contents of entries; None leaves one out."""
    out = path.with_name(f"changed-{zlib.crc32(repr(changes).encode())}.tar")
    contents: dict[str, bytes | None] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            contents[member.name] = file.read()
    with tarfile.open(out, "w") as tar:
        for name, content in (contents | changes).items():
            if content is not None:
                header = tarfile.TarInfo(name)
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))
    return out


def test_an_archive_that_is_not_whole_is_refused(archive: Path, tmp_path: Path) -> None:
    assert unpack(archive, None).database == "sqlite"
    manifest = msgspec.json.decode(
        subprocess.run(["tar", "-xOf", str(archive), MANIFEST], capture_output=True, check=True).stdout, type=Manifest
    )
    newer = msgspec.json.encode(msgspec.structs.replace(manifest, format=2))
    outside = io.BytesIO()
    with tarfile.open(fileobj=outside, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../../etc/cron.d/x"))
    sparse = tarfile.TarInfo("blobs/file-1")
    sparse.type = tarfile.GNUTYPE_SPARSE
    with tarfile.open(tmp_path / "sparse.tar", mode="w") as tar:
        tar.addfile(sparse)
    short = archive.read_bytes()
    (tmp_path / "short.tar").write_bytes(short[: len(short) // 2])
    (tmp_path / "outside.tar").write_bytes(outside.getvalue())
    (tmp_path / "text.tar").write_text("no archive")
    for path, says in (
        (tmp_path / "short.tar", "cut short"),
        (tmp_path / "text.tar", "no backup"),
        (tmp_path / "outside.tar", "entry '../../etc/cron.d/x'"),
        (tmp_path / "sparse.tar", "entry 'blobs/file-1'"),
        (rewritten(archive, **{MANIFEST: None}), "manifest is missing"),
        (rewritten(archive, **{"database.sqlite": b"x"}), "damaged: database.sqlite"),
        (rewritten(archive, **{MANIFEST: newer}), "a newer Kvarn"),
        (rewritten(archive, **{MANIFEST: b"{}"}), "cannot be read: .*`format`"),
    ):
        with pytest.raises(StoreError, match=says):
            unpack(path, None)


async def test_a_database_that_is_missing_is_not_made(tmp_path: Path) -> None:
    store = Store(make_url(f"sqlite+aiosqlite:///{tmp_path}/nowhere.db"))
    with pytest.raises(StoreError, match=r"nowhere\.db cannot be copied: unable to open"):
        await back_up(store, tmp_path)
    await store.close()
    assert list_files(tmp_path) == []


async def test_a_database_without_a_schema_is_nothing_to_back_up(empty: Store, tmp_path: Path) -> None:
    async with empty.migrating():  # a file of SQLite is made when it is opened
        pass
    with pytest.raises(StoreError, match="no schema"):
        await make_backup(empty, tmp_path / "backup.tar", prompt_keys=tmp_path / "none")


async def test_a_failed_backup_leaves_no_file(
    sqlite_file: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(sqlite_file)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match=r"cannot write the backup .*: No space left"):
        await back_up(store, tmp_path)
    await store.close()
    assert not drafts(tmp_path)


async def test_a_restore_does_not_wait_for_ever_for_those_who_use_the_tables(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store.is_sqlite:
        pytest.skip("SQLite tells at once, see above")
    monkeypatch.setattr("kvarn.backups.postgres._LOCK_TIMEOUT_S", 1)
    await create_organization(store, "red")
    path = await back_up(store, tmp_path)
    async with store.migrating() as busy:
        await busy.execute(text("SELECT * FROM organizations"))
        with pytest.raises(StoreError, match="lock timeout"):
            await put_back(store, path, force=True)
    assert await number(store, "SELECT count(*) FROM organizations WHERE name = 'red'") == 1, "as it was"
