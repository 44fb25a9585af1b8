"""Bytes that each organisation stores: `file_bytes`, exact, counted in the transactions that write and delete files;
and `other_bytes`, the sum over all other rows, made every `SUM_EVERY_S` seconds by one process of the deployment.

A row remembers what it counts for (`counted_bytes`): its content and a flat rate. Between two sums each process adds
what it admits itself (`kvarn.store.quota`), so an organisation passes its bound by no more than what the other
processes write in that time, and what models write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from sqlalchemy import bindparam, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError, StoreBusyError
from kvarn.store.models import (
    Batch,
    Container,
    Conversation,
    EvaluationRun,
    EvaluationSet,
    Feedback,
    Organization,
    PromptSample,
    StoredCompletion,
    StoredResponse,
    Upload,
    VectorStore,
)
from kvarn.store.repositories.queries import is_postgresql

ROW_BYTES = 1024
"""Bytes that an object counts for besides its content: a file of one byte takes hardly less."""
ITEM_BYTES = 256
"""Bytes that an item of a conversation counts for besides its content."""
SUM_EVERY_S = 30.0
_SUMMED_AT_ONCE = 200
"""Organisations whose rows one transaction locks, so that writers of files wait for few."""

_SUMMED: Final = (
    *(Conversation, StoredResponse, StoredCompletion, Batch, Upload, Container, PromptSample),
    *(Feedback, EvaluationSet, EvaluationRun, VectorStore),
)


def json_bytes(*values: Any) -> int:
    return sum(len(msgspec.json.encode(value)) for value in values)


@asynccontextmanager
async def storing(store: Store, organization_id: str, size: int) -> AsyncGenerator[AsyncSession, None]:
    """A transaction that writes rows of `size` bytes, refused before it writes any where they do not fit. Raises
    `StorageFullError`, and `StoreBusyError` where others of the organisation write for too long."""
    admitted: int | None = None
    try:
        async with _writing(store, organization_id) as session:
            admitted = store.quota.admit(organization_id, size, store.now())
            yield session
    except BaseException:
        if admitted is not None:
            store.quota.give_back(organization_id, size, admitted)
        raise


@asynccontextmanager
async def storing_file(store: Store, organization_id: str, size: int) -> AsyncGenerator[AsyncSession, None]:
    """A transaction that writes `size` bytes of files, and counts them at its end. Raises as `storing`."""
    async with _writing(store, organization_id) as session:
        if is_postgresql(session):  # a holder of the row's lock that stands still delays others by this, not for long
            await session.execute(text("SET LOCAL lock_timeout = '500ms'"))
        store.quota.check(organization_id, size)
        yield session
        await count_file_bytes(session, organization_id, size, store.quota.max_bytes)
    store.quota.add_file(organization_id, size)


@asynccontextmanager
async def _writing(store: Store, organization_id: str) -> AsyncGenerator[AsyncSession, None]:
    """A transaction of a writer who has a bound. Few of an organisation write at once in each gateway: the others wait
    without a connection."""
    try:
        async with asyncio.timeout(store.timeout_s):
            await store.writers.acquire(organization_id)
    except TimeoutError as error:
        raise StoreBusyError(f"no turn to write came within {store.timeout_s:g} s") from error
    try:
        async with store.transaction() as session:
            await _read_balance(store, session, organization_id)
            yield session
    finally:
        store.writers.release(organization_id)


async def count_file_bytes(
    session: AsyncSession, organization_id: str, size: int, max_bytes: int | None = None
) -> None:
    """Count bytes of files, below zero for deleted ones, as the last thing in a transaction, and once: so there is no
    deadlock, and the organisation's row is locked for the shortest time. Without `max_bytes` there is no bound, as for
    results that have been made; else raises `StorageFullError`, unless fewer bytes are stored than before."""
    await session.flush()
    if not size:
        return
    statement = update(Organization).where(Organization.id == organization_id)
    if max_bytes is not None and size > 0:
        statement = statement.where(Organization.stored_bytes + size <= max_bytes)
    values = statement.values(file_bytes=Organization.file_bytes + size)
    counted = await (await session.connection()).execute(values)
    if max_bytes is not None and counted.rowcount == 0:
        stored = await session.scalar(select(Organization.stored_bytes).where(Organization.id == organization_id)) or 0
        raise StorageFullError(stored, max_bytes, size)


async def sum_stored_bytes(store: Store) -> None:
    began, sums = int(store.now() * 1000), Counter[str]()
    async with store.reporting() as session:
        organizations = list(await session.scalars(select(Organization.id).order_by(Organization.id)))
        for model in _SUMMED:
            rows = select(model.organization_id, func.sum(model.counted_bytes)).group_by(model.organization_id)
            for organization_id, size in await session.execute(rows):
                sums[organization_id] += int(size)
    statement = (
        update(Organization.__table__)  # type: ignore[arg-type]
        .where(Organization.id == bindparam("of"))
        .values(other_bytes=bindparam("size"), summed_at=began)
    )
    given = [{"of": organization_id, "size": sums[organization_id]} for organization_id in organizations]
    for begin in range(0, len(given), _SUMMED_AT_ONCE):
        async with store.transaction() as session:
            await (await session.connection()).execute(statement, given[begin : begin + _SUMMED_AT_ONCE])


async def update_balance(store: Store, organization_id: str, size: int) -> None:
    """Ask what an organisation stores, unless `size` bytes are known to fit, on a connection that its own writers do
    not take."""
    async with store.quota.balance(organization_id).asking:
        if not store.quota.is_known(organization_id, size):
            async with store.reporting() as session:
                await _read_balance(store, session, organization_id)


async def count_organizations_over(store: Store, size: int) -> int:
    async with store.reporting() as session:
        return await session.scalar(select(func.count()).where(size < Organization.stored_bytes)) or 0


async def _read_balance(store: Store, session: AsyncSession, organization_id: str) -> None:
    query = select(Organization.stored_bytes, Organization.summed_at).where(Organization.id == organization_id)
    stored, summed_at = (await session.execute(query)).one_or_none() or (0, 0)
    store.quota.note(organization_id, stored, summed_at)
