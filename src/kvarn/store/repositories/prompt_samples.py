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


@dataclass(slots=True)
class RejectedSamples:
    """Samples that were not kept, and why."""

    full: int = 0
    """Of organisations that would store more than they may."""
    failed: int = 0
    """Of organisations whose samples could not be written at all."""
    error: Exception | None = None
    """Why the last of those could not."""


async def add_samples(store: Store, samples: Sequence[NewSample], max_bytes: int | None = None) -> RejectedSamples:
    """Keep sealed prompts, of each organisation as many as fit in `max_bytes`; how many were not. What goes wrong for
    one organisation (it may have been deleted) is not the others' loss."""
    missed = RejectedSamples()
    for organization_id in {sample.owner.organization_id: None for sample in samples}:
        theirs = [sample for sample in samples if sample.owner.organization_id == organization_id]
        try:
            missed.full += await _add_those_that_fit(store, organization_id, theirs, max_bytes)
        except Exception as error:
            missed.failed, missed.error = missed.failed + len(theirs), error
    return missed


async def _add_those_that_fit(
    store: Store, organization_id: str, theirs: list[NewSample], max_bytes: int | None
) -> int:
    """How many did not."""
    fitting = theirs
    while fitting:
        try:
            await _add(store, organization_id, fitting, max_bytes)
            break
        except StorageFullError as error:
            fitting = _fitting(fitting, error.max_bytes - error.stored)
    return len(theirs) - len(fitting)


def _fitting(samples: list[NewSample], room: int) -> list[NewSample]:
    """The oldest of them, past those that are too large."""
    found = []
    for sample in samples:
        if _counted(sample) <= room:
            found.append(sample)
            room -= _counted(sample)
    return found


async def _add(store: Store, organization_id: str, samples: Sequence[NewSample], max_bytes: int | None) -> None:
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
    async with storing(store, organization_id, size, max_bytes) as session:
        await session.execute(insert(PromptSample), rows)
        await count_bytes(session, organization_id, size, max_bytes)


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
