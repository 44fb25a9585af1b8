"""Contents that lie where `store.blobs` was before: read there, and moved; to a folder, and to a bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from sqlalchemy import make_url, update

from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import KvarnConfig
from kvarn.store.blobs import Blobs, BlobWriter, blobs_of, old_blobs_of
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError, StoreAwayError, StoreError
from kvarn.store.models import File
from kvarn.store.owner import Owner
from kvarn.store.repositories.contents import count_places, move_contents, read_content
from kvarn.store.repositories.files import delete_file, find_file
from new_tenants import create_organization
from stored_files import CONTENT, content_of, keep


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a server that speaks S3."""
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'kvarn[test]'")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            patch.setenv(name, "us-east-1")
        fsspec.filesystem("s3").mkdir("kvarn-files")
        yield "s3://kvarn-files/kvarn"
    running.stop()


@pytest.fixture
async def owner(store: Store) -> Owner:
    return (await create_organization(store, "red")).owner


async def test_contents_move_to_a_bucket_while_they_are_read_written_and_deleted(
    store: Store, owner: Owner, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Blobs(str(tmp_path / "files")), Blobs(bucket)
    in_rows = await keep(store, owner, b"in rows")
    store.blobs = old
    kept, dropped, lost = [await keep(store, owner) for _ in range(3)]
    store.blobs, store.old_blobs = new, (old,)
    added = await keep(store, owner, b"added later")
    reading = read_content(store, kept)
    read = await anext(reading)
    close, seen = BlobWriter.close, []

    async def close_late(writer: BlobWriter) -> None:
        """One is deleted while it is moved, and another mover has been faster with a second one."""
        seen.append(writer)
        if len(seen) == 2:
            await delete_file(store, owner, dropped.id)
            await delete_file(store, owner, lost.id)
        await close(writer)

    monkeypatch.setattr(BlobWriter, "close", close_late)
    moved: list[str] = []
    assert await move_contents(store, lambda file: moved.append(file.id)) == 2 == len(moved)
    assert read + b"".join([piece async for piece in reading]) == CONTENT
    assert {url: files for url, files in (await count_places(store)).items() if files} == {bucket: 3}
    assert await old.names() == [] and sorted(await new.names()) == sorted([in_rows.id, kept.id, added.id])
    store.blobs, store.old_blobs = None, (new,)
    assert await content_of(store, kept) == CONTENT, "a gateway that is restarted later writes to rows, and reads there"
    store.blobs, store.old_blobs = new, (old,)
    for file, content in ((in_rows, b"in rows"), (kept, CONTENT), (added, b"added later")):
        assert await content_of(store, await find_file(store, owner, file.id)) == content
        await delete_file(store, owner, file.id)
    assert await new.names() == []


async def test_a_move_that_was_interrupted_anywhere_is_done_again(
    store: Store, owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Blobs(str(tmp_path / "old")), Blobs(str(tmp_path / "new"))
    store.blobs = old
    file = await keep(store, owner)
    store.blobs, store.old_blobs = new, (old,)

    async def fail(*_: object) -> None:
        raise StoreAwayError("killed")

    for name in ("BlobWriter.write", "Blobs.rename"):
        with monkeypatch.context() as patch:
            patch.setattr(f"kvarn.store.blobs.{name}", fail)
            with pytest.raises(StoreAwayError, match="killed"):
                await move_contents(store)
        assert await content_of(store, file) == CONTENT and await old.names() == [file.id]
    assert await move_contents(store) == 1
    assert (await old.names(), await new.names()) == ([], [file.id])
    assert await content_of(store, file) == CONTENT


async def test_nobody_waits_while_a_bucket_renames(
    store: Store, owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket copies all of a content, which takes longer than a transaction may."""
    file, gone = await keep(store, owner), await keep(store, owner)
    store.blobs = new = Blobs(str(tmp_path / "new"))
    rename = Blobs.rename

    async def write_meanwhile(blobs: Blobs, name: str, to: str) -> None:
        if to == gone.id:
            await delete_file(store, owner, gone.id)
        async with store.transaction() as session:
            await session.execute(update(File).where(File.id == to).values(filename="b"))
        await rename(blobs, name, to)

    monkeypatch.setattr(Blobs, "rename", write_meanwhile)
    assert await move_contents(store) == 1
    assert await new.names() == [file.id] and await content_of(store, await find_file(store, owner, file.id)) == CONTENT


async def test_a_copy_that_differs_is_no_copy(
    store: Store, owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Blobs(str(tmp_path / "old")), Blobs(str(tmp_path / "new"))
    store.blobs = old
    file = await keep(store, owner)
    store.blobs, store.old_blobs = new, (old,)
    write = BlobWriter.write

    async def spoil(writer: BlobWriter, data: bytes) -> None:
        await write(writer, data[:-1] + b"!")

    monkeypatch.setattr(BlobWriter, "write", spoil)
    with pytest.raises(StoreAwayError, match="is not what was written"):
        await move_contents(store)
    assert await content_of(store, file) == CONTENT and await new.names() == []


async def test_one_place_under_two_names_is_noticed_before_anything_is_deleted(
    store: Store, owner: Owner, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "files")
    store.blobs = Blobs(str(tmp_path / "files"))
    file = await keep(store, owner)
    store.old_blobs = (Blobs(str(tmp_path / "link")),)
    with pytest.raises(StoreError, match=r"is where store\.blobs leads"):
        await move_contents(store)
    assert await content_of(store, file) == CONTENT


async def test_a_content_that_is_nowhere_is_not_found(store: Store, owner: Owner, tmp_path: Path) -> None:
    store.blobs, store.old_blobs = Blobs(str(tmp_path / "new")), (Blobs(str(tmp_path / "old")),)
    file = await keep(store, owner)
    await store.blobs.delete(file.id)
    with pytest.raises(NotFoundError, match=r"is not at store\.blobs"):
        await asyncio.wait_for(content_of(store, file), 60)


def test_the_folder_beside_sqlite_is_an_old_place_once_there_is_another(tmp_path: Path) -> None:
    url = make_url(f"sqlite+aiosqlite:///{tmp_path}/kvarn.db")
    bucket = Blobs("memory://kvarn-places")
    assert old_blobs_of((), bucket, url) == ()
    (tmp_path / "kvarn.files").mkdir()
    assert [each.url for each in old_blobs_of((), bucket, url)] == [f"{tmp_path}/kvarn.files"]
    for setting in (None, f"{tmp_path}/kvarn.files", f"file://{tmp_path}/kvarn.files"):
        assert old_blobs_of((), blobs_of(setting, url), url) == ()


def test_a_place_cannot_be_the_new_and_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "kvarn.yaml").write_text("store: {blobs: /srv, old_blobs: [/srv]}")
    with pytest.raises(ConfigError, match="the place that blobs names: leave it out"):
        load_config(tmp_path / "kvarn.yaml")
    config = KvarnConfig.model_validate(
        {"store": {"url": f"sqlite:///{tmp_path}/k.db", "old_blobs": [str(tmp_path / "a")]}}
    )
    assert [each.url for each in Store.open(config).old_blobs] == [str(tmp_path / "a")]
