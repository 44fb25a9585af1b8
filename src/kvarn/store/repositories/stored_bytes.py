"""The account of what each organisation has stored: bytes of files, responses, conversations, completions, batches and
prompt samples together.

Every row that tenants store counts for its content and a flat rate for the row. It is counted in the transaction that
writes it, remembers what it counted for (`counted_bytes`; files and lines of batches know it by their own sizes), and
gives exactly that back in the transaction that deletes it. So the account is the sum over the rows at every moment,
whatever is killed.

    organisation       part 0     part 1     …    part 15       sum: what it has stored
    a response kept       .       +3,456            .           whichever part is drawn: writers seldom meet
    one deleted        -2,900        .              .           a part may be below zero
    a file begun          .          .           +1,024         within a bound: one after another, see `count_bytes`

One number for all would be locked from each writer's count to its commit, and all others of the organisation would
wait for that on PostgreSQL. (SQLite has one writer at a time: there the account is one part.)
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError
from kvarn.store.models import Organization, StoredBytes
from kvarn.store.repositories.dialect import is_postgresql

ROW_BYTES = 1024
"""What an object counts for besides its content: a file of one byte takes hardly less."""
PART_BYTES = 256
"""What an item of a conversation, or a line of a batch, counts for besides its content."""

_PARTS = 16
"""Parts of an account: of sixteen writers that commit at the same moment, few wait for another."""

_ADDED = text(
    "INSERT INTO stored_bytes (organization_id, part, size) VALUES (:organization_id, :part, :size)"
    " ON CONFLICT (organization_id, part) DO UPDATE SET size = stored_bytes.size + excluded.size"
)
"""SQL of both databases. It is part of every write: built anew each time it would take as long as it runs."""
_LOOK = {
    True: text(
        "SELECT coalesce(sum(size), 0), set_config('lock_timeout', '500ms', true)"
        " FROM stored_bytes WHERE organization_id = :organization_id"
    ),
    False: text("SELECT coalesce(sum(size), 0) FROM stored_bytes WHERE organization_id = :organization_id"),
}
"""On PostgreSQL and elsewhere. Whoever holds a lock and stands still holds the others up for half a second each."""


def json_bytes(*values: Any) -> int:
    """Bytes that these take as JSON, as the database keeps them."""
    return sum(len(msgspec.json.encode(value)) for value in values)


@asynccontextmanager
async def storing(
    store: Store, organization_id: str, size: int, max_bytes: int | None
) -> AsyncGenerator[AsyncSession, None]:
    """A transaction that writes bytes within a bound, and ends with `count_bytes`. Where there is no room for them it
    is refused before it writes any: what is written and undone stays on PostgreSQL's disk until it is vacuumed.

    Few of an organisation are at it at once in each gateway: the others wait without a connection.

    Args:
        organization_id: Whose they are.
        size: How many, as far as that is known.
        max_bytes: Bytes that the organisation may store; None: a transaction like any other.

    Raises:
        StorageFullError: It would store more than `max_bytes`.
        StoreBusyError: Others of the organisation write for too long.
    """
    if max_bytes is None:
        async with store.transaction() as session:
            yield session
        return
    async with store.writers.of(organization_id), store.transaction() as session:
        await check_quota(session, organization_id, size, max_bytes)
        yield session


async def check_quota(session: AsyncSession, organization_id: str, size: int, max_bytes: int) -> None:
    """Begin a transaction that writes within a bound: as `storing` does, where that cannot be used."""
    look = _LOOK[is_postgresql(session)]
    row = (await session.execute(look, {"organization_id": organization_id})).one()
    if size > 0 and row[0] + size > max_bytes:
        raise StorageFullError(int(row[0]), max_bytes, size)


async def count_bytes(session: AsyncSession, organization_id: str, size: int, max_bytes: int | None = None) -> None:
    """Count bytes for an organisation, as the last thing in a transaction, and once: so nobody deadlocks, and the
    account is held for the shortest time.

    Args:
        session: The transaction that writes them, or deletes them.
        organization_id: Whose they are.
        size: How many; below zero for what is deleted.
        max_bytes: Bytes that the organisation may store. Those who count within a bound do so one after another, and
            none of them passes it. None: no bound, as for an answer that has been made.

    Raises:
        StorageFullError: It would store more than `max_bytes`. Nobody is refused who stores less than before.
    """
    await session.flush()
    if not size:
        return
    if max_bytes is not None and size > 0:
        # The lock comes first: a sum of the same statement would not see what was committed while that waited.
        locked = select(Organization.id).where(Organization.id == organization_id)
        await session.execute(locked.with_for_update(key_share=True))
        stored = await sum_of(session, organization_id)
        if stored + size > max_bytes:
            raise StorageFullError(stored, max_bytes, size)
    part = random.randrange(_PARTS) if is_postgresql(session) else 0
    values = {"organization_id": organization_id, "part": part, "size": size}
    await (await session.connection()).execute(_ADDED, values)


async def sum_of(session: AsyncSession, organization_id: str) -> int:
    """Bytes that an organisation has stored."""
    parts = select(func.sum(StoredBytes.size)).where(StoredBytes.organization_id == organization_id)
    return int(await session.scalar(parts) or 0)


async def count_organizations_over(store: Store, size: int) -> int:
    """How many organisations have stored more than so many bytes. Raises as `read_stored_bytes` does."""
    fuller = select(StoredBytes.organization_id).group_by(StoredBytes.organization_id)
    fuller = fuller.having(func.sum(StoredBytes.size) > size)
    async with store.reporting() as session:
        return int(await session.scalar(select(func.count()).select_from(fuller.subquery())) or 0)


async def read_stored_bytes(store: Store, organization_id: str) -> int:
    """Bytes that an organisation has stored, on a connection that its own writers do not take. Raises `StoreAwayError`
    where the database does not answer."""
    async with store.reporting() as session:
        return await sum_of(session, organization_id)
