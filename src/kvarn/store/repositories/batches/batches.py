"""Batches, as their owners see them."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import select

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError
from kvarn.store.ids import new_id
from kvarn.store.models import Batch, UsageEvent
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one, find_owned, owned_by
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_bytes, json_bytes, storing


class BatchStatus(StrEnum):
    """Where a batch is in its life."""

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
"""States that a batch never leaves."""
_CANCELLABLE = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


async def create_batch(
    store: Store,
    principal: Principal,
    *,
    endpoint: str,
    input_file_id: str,
    window_s: int,
    metadata: dict[str, str] | None,
    output_expires_after_s: int | None,
    max_bytes: int | None = None,
    input_bytes: int = 0,
) -> Batch:
    """Take a batch; whoever runs batches finds it.

    Raises:
        StorageFullError: Its organisation would store more than `max_bytes` with the `input_bytes` of its lines, which
            will be kept beside the file and count from now on.
    """
    now, counted = int(store.now()), ROW_BYTES + json_bytes(metadata or {}) + input_bytes
    batch = Batch(
        id=new_id("batch_"),
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
        counted_bytes=counted,
        reserved_bytes=input_bytes,
    )
    async with storing(store, batch.organization_id, counted, max_bytes) as session:
        session.add(batch)
        await count_bytes(session, batch.organization_id, counted, max_bytes)
    return batch


async def check_batch(store: Store, batch_id: str) -> None:
    """See that there is or was a batch of this id, whoever's: one that has been deleted is known by what it used.

    Raises:
        NotFoundError: Neither is known.
    """
    async with store.reading() as session:
        if await session.get(Batch, batch_id) is None:
            used = select(UsageEvent.id).where(UsageEvent.batch_id == batch_id).limit(1)
            await find_one(session, used, f"There is no batch {batch_id[:80]!r}.")


async def list_batches(store: Store, owner: Owner, cursor: Cursor) -> Page[Batch]:
    """A page of an owner's batches, newest first. Raises `NotFoundError` where the cursor's batch is not theirs."""
    async with store.reading() as session:
        return await read_page(session, owned_by(owner, Batch), cursor, (Batch.created_at, Batch.id))


async def cancel_batch(store: Store, owner: Owner, batch_id: str) -> Batch:
    """Ask that a batch be given up; one that is being given up already stays so.

    Raises:
        NotFoundError: There is none of this id, or it is not theirs.
        ConflictError: It is over, or as good as.
    """
    async with store.transaction() as session:
        batch = await find_owned(session, owner, Batch, batch_id, to_change=True)
        if batch.status in _CANCELLABLE:
            batch.status = BatchStatus.CANCELLING
            batch.times = {**batch.times, "cancelling_at": int(store.now())}
        elif batch.status != BatchStatus.CANCELLING:
            raise ConflictError(f"The batch {batch_id} is {batch.status}: it cannot be cancelled any more.")
    return batch
