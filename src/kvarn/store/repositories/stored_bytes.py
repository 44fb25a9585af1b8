"""The account of what each organisation has stored (`Organization.stored_bytes`): bytes of files, responses,
conversations, completions, batches and prompt samples together.

Every row that tenants store counts for its content and a flat rate for the row. It is counted in the transaction that
writes it, remembers what it counted for (`counted_bytes`; files and lines of batches know it by their own sizes), and
gives exactly that back in the transaction that deletes it. So the account is the sum over the rows at every moment,
whatever is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError, StoreBusyError
from kvarn.store.models import Organization
from kvarn.store.repositories.dialect import is_postgresql

ROW_BYTES = 1024
"""What an object counts for besides its content: a file of one byte takes hardly less."""
PART_BYTES = 256
"""What an item of a conversation, or a line of a batch, counts for besides its content."""


def json_bytes(*values: Any) -> int:
    """Bytes that these take as JSON, as the database keeps them."""
    return sum(len(msgspec.json.encode(value)) for value in values)


@asynccontextmanager
async def storing(store: Store, organization_id: str, size: int) -> AsyncGenerator[AsyncSession, None]:
    """A transaction that writes bytes within the store's bound, and counts them at its end. Where there is no room for
    them it is refused before it writes any: what is undone stays on PostgreSQL's disk until it is vacuumed.

    Few of an organisation are at it at once in each gateway: the others wait without a connection.

    Args:
        organization_id: Whose they are.
        size: How many; 0 where only the block knows, which then ends with `count_bytes`.

    Raises:
        StorageFullError: It would store more than it may.
        StoreBusyError: Others of the organisation write for too long.
    """
    try:
        async with asyncio.timeout(store.timeout_s):
            await store.writers.acquire(organization_id)
    except TimeoutError as error:
        raise StoreBusyError(f"no turn to write came within {store.timeout_s:g} s") from error
    try:
        async with store.transaction() as session:
            if store.max_stored_bytes is not None:
                await check_quota(session, organization_id, size, store.max_stored_bytes)
            yield session
            await count_bytes(session, organization_id, size, store.max_stored_bytes)
    finally:
        store.writers.release(organization_id)


async def check_quota(session: AsyncSession, organization_id: str, size: int, max_bytes: int) -> None:
    """Begin a transaction that writes within a bound: as `storing` does, where that cannot be used."""
    if is_postgresql(session):  # whoever holds a lock and stands still holds the others up for half a second each
        await session.execute(text("SET LOCAL lock_timeout = '500ms'"))
    stored = await _read(session, organization_id)
    if size > 0 and stored + size > max_bytes:
        raise StorageFullError(stored, max_bytes, size)


async def count_bytes(session: AsyncSession, organization_id: str, size: int, max_bytes: int | None = None) -> None:
    """Count bytes for an organisation, as the last thing in a transaction, and once: so nobody deadlocks, and the
    account is held for the shortest time.

    Args:
        session: The transaction that writes them, or deletes them.
        organization_id: Whose they are.
        size: How many; below zero for what is deleted.
        max_bytes: Bytes that the organisation may store; None: no bound, as for an answer that has been made.

    Raises:
        StorageFullError: It would store more than `max_bytes`. Nobody is refused who stores less than before.
    """
    await session.flush()
    if not size:
        return
    stored = Organization.stored_bytes + size
    statement = update(Organization).where(Organization.id == organization_id).values(stored_bytes=stored)
    if max_bytes is not None and size > 0:
        statement = statement.where(stored <= max_bytes)
    counted = await (await session.connection()).execute(statement)
    if max_bytes is not None and counted.rowcount == 0:
        raise StorageFullError(await _read(session, organization_id), max_bytes, size)


async def count_organizations_over(store: Store, size: int) -> int:
    """How many organisations have stored more than so many bytes. Raises as `read_stored_bytes` does."""
    async with store.reporting() as session:
        return await session.scalar(select(func.count()).where(Organization.stored_bytes > size)) or 0


async def read_stored_bytes(store: Store, organization_id: str) -> int:
    """Bytes that an organisation has stored, on a connection that its own writers do not take. Raises `StoreAwayError`
    where the database does not answer."""
    async with store.reporting() as session:
        return await _read(session, organization_id)


async def _read(session: AsyncSession, organization_id: str) -> int:
    return await session.scalar(select(Organization.stored_bytes).where(Organization.id == organization_id)) or 0
