"""Batches, as their owners see them, and as the gateways that run them do: taken by lease, changed by the holder of the
lease only.

A lease that runs out is taken by another. Changes by a gateway that has lost its lease are refused (`LeaseLostError`),
so that two never write the same batch.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from enum import StrEnum
from typing import Any

from sqlalchemy import Update, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError, StoreError
from kvarn.store.ids import new_id
from kvarn.store.models import Batch, UsageEvent
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.files import delete_file, publish_file
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import delete_owned, find_one, find_owned, given_values, owned_by, read_owned
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_file_bytes, json_bytes, storing


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    """Its input is no list of requests; none was run."""
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OVER = (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)
_CANCELLABLE = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


class LeaseLostError(StoreError):
    """Another gateway runs the batch now, or it was deleted."""


async def create_batch(
    store: Store,
    principal: Principal,
    *,
    endpoint: str,
    input_file_id: str,
    window_s: int,
    metadata: dict[str, str] | None,
    output_expires_after_s: int | None,
    input_bytes: int = 0,
    id_prefix: str = "batch_",
    total: int = 0,
) -> Batch:
    """Take a batch. The `input_bytes` of its lines, which are kept beside the file, count from now on."""
    now, counted = int(store.now()), ROW_BYTES + json_bytes(metadata or {}) + input_bytes
    batch = Batch(
        id=new_id(id_prefix),
        organization_id=principal.organization_id,
        project_id=principal.project_id,
        key_id=principal.key_id,
        endpoint=endpoint,
        input_file_id=input_file_id,
        status=BatchStatus.VALIDATING,
        window_s=window_s,
        created_at=now,
        expires_at=now + window_s,
        times={},
        errors=[],
        extra=metadata or {},
        output_expires_after_s=output_expires_after_s,
        total=total,
        counted_bytes=counted,
    )
    async with storing(store, batch.organization_id, counted) as session:
        session.add(batch)
    return batch


async def check_batch(store: Store, batch_id: str) -> None:
    """Raise `NotFoundError` unless a batch of this id is or was there, of any owner: a deleted one is known by its
    usage."""
    async with store.reading() as session:
        if await session.get(Batch, batch_id) is None:
            used = select(UsageEvent.id).where(UsageEvent.batch_id == batch_id).limit(1)
            await find_one(session, used, f"There is no batch {batch_id[:80]!r}.")


async def list_batches(store: Store, owner: Owner, cursor: Cursor, endpoint: str | None = None) -> Page[Batch]:
    query = owned_by(owner, Batch).where(*given_values((Batch.endpoint, endpoint)))
    async with store.reading() as session:
        return await read_page(session, query, cursor, (Batch.created_at, Batch.id))


async def find_batch(store: Store, owner: Owner, batch_id: str, endpoint: str) -> Batch:
    batch = await read_owned(store, owner, Batch, batch_id)
    if batch.endpoint != endpoint:
        raise NotFoundError(f"There is no batch {batch_id[:80]!r}.")
    return batch


async def delete_batch(store: Store, owner: Owner, batch_id: str, endpoint: str) -> None:
    """Delete an owner's batch that is over, with its input and its results. Raises `ConflictError` where it is not."""
    batch = await find_batch(store, owner, batch_id, endpoint)
    if batch.status not in OVER:
        raise ConflictError(f"The batch {batch_id} is {batch.status}: cancel it, and delete it once it has ended.")
    for file_id in filter(None, (batch.input_file_id, batch.output_file_id, batch.error_file_id)):
        with suppress(NotFoundError):  # it has been deleted, or has expired
            await delete_file(store, owner, file_id, with_batch=True)
    await delete_owned(store, owner, Batch, batch_id)


async def cancel_batch(store: Store, owner: Owner, batch_id: str) -> Batch:
    async with store.transaction() as session:
        batch = await find_owned(session, owner, Batch, batch_id, to_change=True)
        if batch.status in _CANCELLABLE:
            batch.status = BatchStatus.CANCELLING
            batch.times = {**batch.times, "cancelling_at": int(store.now())}
        elif batch.status != BatchStatus.CANCELLING:
            raise ConflictError(f"The batch {batch_id} is {batch.status}: it cannot be cancelled any more.")
    return batch


async def claim_batches(store: Store, holder: str, lease_s: float, count: int) -> list[Batch]:
    """Take up to `count` batches that no gateway works on: of each organisation its oldest first, so that one with many
    does not keep the others waiting."""
    now = int(store.now())
    turn = func.row_number().over(partition_by=Batch.organization_id, order_by=(Batch.created_at, Batch.id))
    live = select(Batch.id, Batch.created_at, turn.label("turn")).where(Batch.status.not_in(OVER)).subquery()
    free = and_(Batch.status.not_in(OVER), _free(now))
    query = select(Batch.id).join(live, live.c.id == Batch.id).where(free)
    async with store.reading() as session:  # mostly there is none: finding that out must not block writers
        ids = list(await session.scalars(query.order_by(live.c.turn, live.c.created_at, Batch.id).limit(count)))
    claimed: list[Batch] = []
    if not ids:
        return claimed
    async with store.transaction() as session:
        for batch_id in ids:
            statement = update(Batch).where(Batch.id == batch_id, free).returning(Batch)
            values = {"leased_by": holder, "leased_until": now + int(lease_s)}
            batch = (await session.execute(statement.values(values))).scalar_one_or_none()
            if batch is not None:
                claimed.append(batch)
    return claimed


async def waiting_organizations(store: Store) -> set[str]:
    free = and_(Batch.status.not_in(OVER), _free(int(store.now())))
    async with store.reading() as session:
        return set(await session.scalars(select(Batch.organization_id).where(free).distinct()))


async def renew_lease(store: Store, holder: str, batch_id: str, lease_s: float) -> Batch:
    async with store.transaction() as session:
        return await change_batch(session, holder, batch_id, leased_until=int(store.now()) + int(lease_s))


async def release_batch(store: Store, holder: str, batch_id: str, until: int | None = None) -> None:
    async with store.transaction() as session:
        held = _held(holder, batch_id)
        await session.execute(held.values(leased_by=None, leased_until=until))


async def change_batch(session: AsyncSession, holder: str, batch_id: str, **values: Any) -> Batch:
    """Change columns of a batch that one holds, as part of a transaction; the batch as it is then."""
    changed = _held(holder, batch_id).values(**values).returning(Batch)
    batch = (await session.execute(changed, execution_options={"populate_existing": True})).scalar_one_or_none()
    if batch is None:
        raise LeaseLostError(f"the batch {batch_id} is run by another gateway")
    return batch


async def move_batch(
    store: Store, holder: str, batch_id: str, origin: Collection[BatchStatus], status: BatchStatus, **values: Any
) -> Batch:
    """Bring a batch from one of the states `origin` into another; one that is in none of them (its client cancelled it
    meanwhile) stays as it is. The batch as it is then."""
    async with store.transaction() as session:
        batch = await _locked(session, holder, batch_id)
        if batch.status in origin:
            _enter(batch, status, int(store.now()), values)
    return batch


async def finish_batch(
    store: Store,
    holder: str,
    batch_id: str,
    origin: Collection[BatchStatus],
    status: BatchStatus,
    files: dict[str, dict[str, Any]],
    kept_s: int | None,
    **values: Any,
) -> Batch:
    """End a batch: its files can be seen, and count, from the moment on at which it is over. One that is in none of the
    states `origin` (its client cancelled it meanwhile) stays as it is. `files`: fields of `publish_file` by the column
    that names the file. The batch as it is then."""
    now = int(store.now())
    async with store.transaction() as session:
        batch = await _locked(session, holder, batch_id)
        if batch.status not in origin:
            return batch
        written = 0
        for column, fields in files.items():
            expires_at = now + kept_s if kept_s else None
            file = await publish_file(session, now=now, expires_at=expires_at, purpose="batch_output", **fields)
            setattr(batch, column, file.id)
            if not file.counted:
                file.counted = True
                written += file.size + ROW_BYTES
        batch.leased_by = batch.leased_until = None
        _enter(batch, status, now, values)
        await count_file_bytes(session, batch.organization_id, written)
    return batch


def _enter(batch: Batch, status: BatchStatus, now: int, values: dict[str, Any]) -> None:
    batch.status = status
    batch.times = {**batch.times, f"{status}_at": now}
    for name, value in values.items():
        setattr(batch, name, value)
    if status in OVER:  # its lines are about to be deleted
        batch.counted_bytes = ROW_BYTES + json_bytes(batch.extra, batch.errors)


async def _locked(session: AsyncSession, holder: str, batch_id: str) -> Batch:
    query = select(Batch).where(Batch.id == batch_id, Batch.leased_by == holder).with_for_update()
    batch = await session.scalar(query)
    if batch is None:
        raise LeaseLostError(f"the batch {batch_id} is run by another gateway")
    return batch


def _held(holder: str, batch_id: str) -> Update:
    return update(Batch).where(Batch.id == batch_id, Batch.leased_by == holder)


def _free(now: int) -> Any:
    put_off = and_(Batch.leased_by.is_(None), Batch.status == BatchStatus.CANCELLING)
    return or_(Batch.leased_until.is_(None), Batch.leased_until <= now, put_off)
