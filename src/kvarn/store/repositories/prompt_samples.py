"""Prompts that projects allowed to be kept: sealed before they come here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select

from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError
from kvarn.store.models import PromptSample
from kvarn.store.owner import Owner
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_bytes, storing


@dataclass(frozen=True, slots=True)
class NewSample:
    """A sealed prompt and whose it is."""

    owner: Owner
    request_id: str
    model: str
    created_at: int
    sealed: bytes


async def add_samples(store: Store, samples: Sequence[NewSample], most: int | None = None) -> int:
    """Keep sealed prompts; how many were not, because their organisation would store more than `most` bytes."""
    dropped = 0
    for organization_id in {sample.owner.organization_id: None for sample in samples}:
        theirs = [sample for sample in samples if sample.owner.organization_id == organization_id]
        try:
            await _add(store, organization_id, theirs, most)
        except StorageFullError:
            dropped += len(theirs)
    return dropped


async def _add(store: Store, organization_id: str, samples: Sequence[NewSample], most: int | None) -> None:
    rows = [
        {
            "organization_id": sample.owner.organization_id,
            "project_id": sample.owner.project_id,
            "request_id": sample.request_id,
            "model": sample.model,
            "created_at": sample.created_at,
            "sealed": sample.sealed,
            "counted_bytes": _counted(sample),
        }
        for sample in samples
    ]
    size = sum(_counted(sample) for sample in samples)
    async with storing(store, organization_id, size, most) as session:
        await session.execute(insert(PromptSample), rows)
        await count_bytes(session, organization_id, size, most)


def _counted(sample: NewSample) -> int:
    return ROW_BYTES + len(sample.sealed)


async def latest_samples(
    store: Store, limit: int, *, project_id: str | None = None, request_id: str | None = None
) -> list[PromptSample]:
    """The newest samples of all organisations, for the operator; newest first."""
    query = select(PromptSample).order_by(PromptSample.id.desc()).limit(limit)
    if project_id is not None:
        query = query.where(PromptSample.project_id == project_id)
    if request_id is not None:
        query = query.where(PromptSample.request_id == request_id)
    async with store.reading() as session:
        return list((await session.scalars(query)).all())
