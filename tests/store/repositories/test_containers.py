"""Containers of the code interpreter in the database: how they expire, and go with their organisation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import func, select

from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import Container, File, Organization
from kvarn.store.owner import Owner
from kvarn.store.repositories.containers import (
    ContainerFullError,
    add_container,
    all_container_files,
    find_container,
    new_container,
    use_container,
    write_container_file,
)
from kvarn.store.repositories.files import list_files
from kvarn.store.repositories.organization_deletion import delete_organization_data
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.retention import delete_expired
from new_tenants import create_organization


@pytest.fixture
async def owner(store: Store) -> Owner:
    return (await create_organization(store, "red")).owner


async def make(store: Store, owner: Owner, idle_s: int = 60) -> Container:
    made = new_container(owner, name="c", idle_s=idle_s, memory_mib=512, now=int(store.now()))
    await add_container(store, made)
    return await find_container(store, owner, made.id)


async def put(store: Store, container: Container, path: str, size: int, max_bytes: int = 1000) -> File:
    async def content() -> AsyncIterator[bytes]:
        yield bytes(size)

    return await write_container_file(store, container, path, content(), source="user", max_bytes=max_bytes)


async def left(store: Store) -> tuple[int, int, int]:
    """Containers, files, and bytes that count."""
    async with store.reading() as session:
        containers = await session.scalar(select(func.count()).select_from(Container)) or 0
        files = await session.scalar(select(func.count()).select_from(File)) or 0
        return containers, files, await session.scalar(select(func.sum(Organization.file_bytes))) or 0


async def test_a_file_written_again_takes_the_place_of_the_one_before(store: Store, owner: Owner) -> None:
    container = await make(store, owner)
    first = await put(store, container, "a", 10)
    second = await put(store, container, "a", 20)
    files = await all_container_files(store, container)
    assert [(each.id, each.size) for each in files] == [(second.id, 20)] and first.id != second.id
    assert (await left(store))[1:] == (1, 20 + 1024)
    assert (await list_files(store, owner, Cursor())).items == []  # they are seen in their container alone


async def test_files_have_room_together(store: Store, owner: Owner) -> None:
    container = await make(store, owner)
    await put(store, container, "a", 600)
    with pytest.raises(ContainerFullError):
        await put(store, container, "b", 600)
    await put(store, container, "a", 900)
    assert (await left(store))[1:] == (1, 900 + 1024)  # nothing is left of the one that was refused


async def test_a_container_lives_while_it_is_used_and_goes_with_its_files(
    store: Store, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    container, other = await make(store, owner), await make(store, owner, idle_s=10_000)
    await put(store, container, "a", 10)
    await put(store, other, "b", 10)
    now = store.now()
    monkeypatch.setattr(store, "now", lambda: now + 50)
    use = await use_container(store, owner, container.id, "one")
    assert use.is_first and not use.is_last_user
    again = await use_container(store, owner, container.id, "one")
    assert again.is_last_user and not again.is_first
    monkeypatch.setattr(store, "now", lambda: now + 100)
    await find_container(store, owner, container.id)
    monkeypatch.setattr(store, "now", lambda: now + 120)
    with pytest.raises(NotFoundError, match="may have expired"):
        await find_container(store, owner, container.id)
    swept = await delete_expired(store, RetentionConfig())
    assert not swept.failures and swept.deleted["containers"] == 1
    assert await left(store) == (1, 1, 10 + 1024)


async def test_containers_go_with_their_organisation(store: Store, owner: Owner) -> None:
    await put(store, await make(store, owner), "a", 10)
    await delete_organization_data(store, owner.organization_id)
    assert await left(store) == (0, 0, 0)
