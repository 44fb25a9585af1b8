"""Contents of files at `store.blobs` and in rows: written, read, deleted, and moved from one to the other."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from sqlalchemy import func, make_url, select

from kvarn.answers.errors import to_api_error
from kvarn.config.platform import RetentionConfig
from kvarn.store.blobs import CHUNK_BYTES, Blobs, BlobWriter, blobs_of
from kvarn.store.engine import Store
from kvarn.store.errors import DiskFullError, NotFoundError, StoreAwayError, StoreError
from kvarn.store.models import File, FileChunk
from kvarn.store.owner import Owner
from kvarn.store.repositories.contents import move_contents, read_content
from kvarn.store.repositories.files import FileWriter, delete_file, drop_file, find_file
from kvarn.store.repositories.organization_deletion import delete_organization_data
from kvarn.store.repositories.retention import delete_expired
from kvarn.store.repositories.uploads import create_upload, drop_parts
from new_tenants import create_organization
from stored_files import CONTENT, content_of, keep


@pytest.fixture(params=["folder", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Blobs]:
    yield Blobs(str(tmp_path / "files") if request.param == "folder" else "memory://kvarn-test")
    memory = fsspec.filesystem("memory")
    if memory.exists("/kvarn-test"):
        memory.rm("/kvarn-test", recursive=True)


@pytest.fixture
async def owner(store: Store) -> Owner:
    return (await create_organization(store, "red")).owner


async def rows(store: Store) -> int:
    async with store.reading() as session:
        return await session.scalar(select(func.count()).select_from(FileChunk)) or 0


def names(blobs: Blobs) -> list[str]:
    files, root = blobs.open()
    return sorted(path.rpartition("/")[2] for path in files.find(root))


@pytest.mark.parametrize("content", [b"", b"x", CONTENT])
async def test_a_file_is_read_as_it_was_written_and_is_gone_once_deleted(
    store: Store, owner: Owner, blobs: Blobs, content: bytes
) -> None:
    store.blobs = blobs
    file = await keep(store, owner, content)
    assert await content_of(store, file) == content
    assert await rows(store) == 0 and names(blobs) == ([file.id] if content else [])
    await delete_file(store, owner, file.id)
    assert names(blobs) == []
    if content:
        with pytest.raises(NotFoundError):
            await content_of(store, file)


async def test_a_file_that_is_given_up_leaves_nothing(store: Store, owner: Owner, blobs: Blobs) -> None:
    store.blobs = blobs
    writer = FileWriter(store, owner)
    await writer.write(CONTENT)
    await writer.discard()
    assert names(blobs) == []


async def test_parts_of_an_upload_go_with_it(store: Store, owner: Owner, blobs: Blobs) -> None:
    store.blobs = blobs
    upload = await create_upload(store, owner, filename="a", purpose="batch", size=9, file_expires_after_s=None)
    part = FileWriter(store, owner, part_of=upload)
    await part.write(b"123456789")
    assert [await part.finish()] == names(blobs)
    await drop_parts(store, upload.id)
    assert names(blobs) == []


async def test_contents_move_out_of_the_database_once(store: Store, owner: Owner, blobs: Blobs) -> None:
    contents = [CONTENT, b"", b"short"]
    files = [await keep(store, owner, content) for content in contents]
    unfinished = FileWriter(store, owner)
    await unfinished.write(CONTENT)
    before = await rows(store)
    assert await move_contents(store) == 0 and await rows(store) == before > 0
    store.blobs = blobs
    assert await move_contents(store) == 2
    assert await rows(store) == len(CONTENT) // CHUNK_BYTES, "of the file that is not whole"
    assert await move_contents(store) == 0
    for file, content in zip(files, contents, strict=True):
        assert await content_of(store, await find_file(store, owner, file.id)) == content


async def test_a_move_that_was_interrupted_is_done_again(
    store: Store, owner: Owner, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await keep(store, owner)
    store.blobs = blobs
    await (await blobs.create("moving/of-a-process-that-died")).close()

    async def fail(*_: object) -> None:
        raise StoreAwayError("killed")

    for name in ("kvarn.store.blobs.BlobWriter.close", "kvarn.store.repositories.contents._delete_rows"):
        with monkeypatch.context() as patch:
            patch.setattr(name, fail)
            with pytest.raises(StoreAwayError, match="killed"):
                await move_contents(store)
        assert await content_of(store, await find_file(store, owner, file.id)) == CONTENT
    assert await move_contents(store) == 1
    assert await rows(store) == 0 and names(blobs) == [file.id]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_move_that_comes_late_leaves_the_content_of_the_one_before(
    store: Store, owner: Owner, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    file = await keep(store, owner)
    store.blobs = blobs
    close = BlobWriter.close

    async def come_late(writer: BlobWriter) -> None:
        monkeypatch.setattr(BlobWriter, "close", close)
        assert await move_contents(store) == 1
        if is_deleted:
            await delete_file(store, owner, file.id)
        await close(writer)

    monkeypatch.setattr(BlobWriter, "close", come_late)
    assert await move_contents(store) == 0
    assert names(blobs) == ([] if is_deleted else [file.id])
    if not is_deleted:
        assert await content_of(store, await find_file(store, owner, file.id)) == CONTENT


async def test_a_writer_that_is_cancelled_while_its_blob_is_created_leaves_none(
    store: Store, owner: Owner, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.blobs = blobs
    files, _ = blobs.open()
    create, creating, cancelled = files.open, threading.Event(), threading.Event()

    def wait_and_create(*arguments: Any, **options: Any) -> Any:
        creating.set()
        assert cancelled.wait(60)
        return create(*arguments, **options)

    monkeypatch.setattr(files, "open", wait_and_create)
    keeping = asyncio.create_task(keep(store, owner))
    assert await asyncio.to_thread(creating.wait, 60)
    keeping.cancel()
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    gc.collect()
    assert names(blobs) == []


async def test_a_reader_goes_on_when_the_content_moves_beneath_it(store: Store, owner: Owner, blobs: Blobs) -> None:
    reading = read_content(store, await keep(store, owner))
    read = await anext(reading)
    store.blobs = blobs
    await move_contents(store)
    assert read + b"".join([piece async for piece in reading]) == CONTENT


async def test_a_content_outside_the_database_needs_the_setting(store: Store, owner: Owner, blobs: Blobs) -> None:
    store.blobs = blobs
    file = await keep(store, owner)
    store.blobs = None
    with pytest.raises(StoreAwayError, match=r"set store\.blobs as it was"):
        await content_of(store, file)
    for deletion in (delete_file(store, owner, file.id), drop_file(store, file.id)):
        with pytest.raises(StoreAwayError, match=r"set store\.blobs as it was"):
            await deletion
    store.blobs = blobs
    assert await content_of(store, await find_file(store, owner, file.id)) == CONTENT


async def test_a_content_that_was_cut_short_is_noticed(store: Store, owner: Owner, tmp_path: Path) -> None:
    store.blobs = Blobs(str(tmp_path / "files"))
    file = await keep(store, owner)
    assert (tmp_path / "files" / file.id).stat().st_mode & 0o777 == 0o600
    (tmp_path / "files" / file.id).write_bytes(CONTENT[:-1])
    with pytest.raises(StoreAwayError, match=rf"has {len(CONTENT) - 1} bytes, not {len(CONTENT)}"):
        await content_of(store, file)


@pytest.mark.parametrize("at_once", [1, 25])
async def test_a_content_that_cannot_be_deleted_keeps_no_other_file(
    store: Store, owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("kvarn.store.repositories.retention._AT_ONCE", at_once)
    store.blobs = Blobs(str(tmp_path / "files"))
    files = [await keep(store, owner) for _ in range(3)]
    stuck = min(file.id for file in files)
    (tmp_path / "files" / stuck).unlink()
    (tmp_path / "files" / stuck).mkdir()
    swept = await delete_expired(store, RetentionConfig(files_days=1))
    assert isinstance(swept.failures["files"], StoreAwayError)
    async with store.reading() as session:
        assert list(await session.scalars(select(File.id))) == [stuck]
    with pytest.raises(StoreAwayError):
        await delete_organization_data(store, owner.organization_id)
    (tmp_path / "files" / stuck).rmdir()
    assert (await delete_organization_data(store, owner.organization_id))["files"] == 1


async def test_a_place_that_takes_no_writes_is_an_outage(store: Store, owner: Owner, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    store.blobs = Blobs(str(tmp_path / "files"))
    store.blobs.open()
    (tmp_path / "files").rmdir()
    with pytest.raises(StoreAwayError, match=r"store\.blobs cannot be used"):
        await keep(store, owner)


def test_contents_lie_beside_sqlite_in_rows_of_postgresql_or_where_the_setting_says(tmp_path: Path) -> None:
    sqlite, postgresql = make_url(f"sqlite+aiosqlite:///{tmp_path}/kvarn.db"), make_url("postgresql+asyncpg://h/n")
    beside, given = blobs_of(None, sqlite), blobs_of(f"file://{tmp_path}/shared", postgresql)
    assert beside is not None and beside.url == f"{tmp_path}/kvarn.files"
    assert given is not None and (tmp_path / "shared").is_dir()
    assert blobs_of(None, postgresql) is None and blobs_of("database", sqlite) is None
    with pytest.raises(StoreError, match=r"store\.blobs names 'nowhere://x', which cannot be used"):
        blobs_of("nowhere://x", sqlite)


async def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path / "files"))
    await (await blobs.create("first")).close()
    (tmp_path / "files" / "full").symlink_to("/dev/full")
    writer = await blobs.create("full")
    with pytest.raises(DiskFullError) as full:
        await writer.write(CONTENT)
    error = to_api_error(full.value)
    assert error.status == 503 and "storage is full" in error.message
