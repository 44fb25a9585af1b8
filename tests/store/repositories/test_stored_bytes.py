"""The bytes of an organisation's files are counted exactly, and bounded exactly, whatever happens at the same time."""

from __future__ import annotations

import asyncio

import pytest

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError, StorageFullError
from kvarn.store.owner import Owner
from kvarn.store.repositories.files import FileWriter, delete_file, drop_file, publish_file
from kvarn.store.repositories.stored_bytes import ROW_BYTES
from new_tenants import create_organization
from stored_account import file_bytes

MIB = 1024 * 1024
FILE = MIB + ROW_BYTES
"""What a file of a mebibyte counts for."""


async def stored(store: Store, owner: Owner) -> int:
    return await file_bytes(store, owner.organization_id)


async def keep(store: Store, owner: Owner, size: int = MIB) -> str:
    """Write and publish a file, or leave nothing of it."""
    writer = FileWriter(store, owner)
    try:
        for begin in range(0, size, 100_000):
            await writer.write(b"x" * min(100_000, size - begin))
        file_id = await writer.finish()
    except StorageFullError:
        await writer.discard()
        raise
    async with store.transaction() as session:
        await publish_file(session, file_id, filename="a", purpose="batch", now=int(store.now()), expires_at=None)
    return file_id


async def test_a_file_counts_from_its_first_byte_to_its_deletion(store: Store) -> None:
    red = (await create_organization(store, "red")).owner
    blue = (await create_organization(store, "blue")).owner
    writer = FileWriter(store, red)
    await writer.write(b"x" * MIB)
    assert await stored(store, red) == FILE, "not whole yet"
    await writer.discard()
    assert await stored(store, red) == 0
    files = [await keep(store, red, size=size) for size in (0, 1, MIB, 2 * MIB + 5)]
    assert await stored(store, red) == 3 * MIB + 6 + 4 * ROW_BYTES
    await delete_file(store, red, files[2])
    await drop_file(store, files[2])
    assert await stored(store, red) == 2 * MIB + 6 + 3 * ROW_BYTES, "once, however often it is deleted"
    assert await stored(store, blue) == 0


async def test_of_uploads_at_the_same_time_each_is_whole_or_leaves_nothing(store: Store) -> None:
    red = (await create_organization(store, "red")).owner
    most, size = 5 * FILE, 2 * MIB
    store.quota.max_bytes = most
    done = await asyncio.gather(*[keep(store, red, size) for _ in range(6)], return_exceptions=True)
    kept = [result for result in done if isinstance(result, str)]
    assert all(isinstance(result, str | StorageFullError) for result in done), done
    assert len(kept) <= 2
    assert await stored(store, red) == len(kept) * (size + ROW_BYTES)
    for _ in range(2 - len(kept)):
        await keep(store, red, size)
    with pytest.raises(StorageFullError):
        await keep(store, red, size)
    await keep(store, red, most - await stored(store, red) - ROW_BYTES)
    assert await stored(store, red) == most
    with pytest.raises(StorageFullError):
        await keep(store, red, 0)
    blue = (await create_organization(store, "blue")).owner
    await keep(store, blue, size)


async def test_nothing_is_added_to_a_file_that_is_gone(store: Store) -> None:
    red = (await create_organization(store, "red")).owner
    writer = FileWriter(store, red)
    await writer.write(b"x" * MIB)
    await writer.discard()
    with pytest.raises(NotFoundError):
        await writer.write(b"x" * MIB)
    assert await stored(store, red) == 0
