"""Prompts that projects allowed to be kept: sealed before they come here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from kvarn.store.engine import Store
from kvarn.store.errors import StorageFullError
from kvarn.store.ids import event_ids
from kvarn.store.models import PromptSample
from kvarn.store.owner import Owner
from kvarn.store.repositories.queries import find_one, given_values
from kvarn.store.repositories.stored_bytes import ROW_BYTES, storing

UNREVIEWED = "unreviewed"


@dataclass(slots=True)
class RejectedSamples:
    """Samples that were not kept, and why."""

    full: int = 0  # samples of organisations that would store more than they may
    failed: int = 0  # samples that could not be written at all
    error: Exception | None = None  # why the last of those could not


def new_sample(
    owner: Owner, request_id: str, model: str, created_at: int, sealed: bytes, event_id: str | None = None
) -> PromptSample:
    return PromptSample(
        organization_id=owner.organization_id,
        project_id=owner.project_id,
        request_id=request_id,
        model=model,
        created_at=created_at,
        sealed=sealed,
        event_id=event_id,
        counted_bytes=ROW_BYTES + len(sealed),
    )


async def add_samples(store: Store, samples: Sequence[PromptSample]) -> RejectedSamples:
    """Keep sealed prompts, of each organisation all or, where they do not fit, none; how many were not.
    What goes wrong for one organisation (it may have been deleted) is not the others' loss."""
    rejected, by_organization = RejectedSamples(), defaultdict[str, list[PromptSample]](list)
    for sample in samples:
        by_organization[sample.organization_id].append(sample)
    for organization_id, theirs in by_organization.items():
        size = sum(sample.counted_bytes for sample in theirs)
        try:
            async with storing(store, organization_id, size) as session:
                session.add_all(theirs)
        except StorageFullError:
            rejected.full += len(theirs)
        except Exception as error:
            rejected.failed, rejected.error = rejected.failed + len(theirs), error
    return rejected


async def add_answers(store: Store, answers: Mapping[str, bytes]) -> None:
    """Add sealed answers to the prompts of these usage events; they are kept however much is stored by now."""
    if not answers:
        return
    async with store.transaction() as session:
        for event_id, sealed in answers.items():
            counted = PromptSample.counted_bytes + len(sealed)
            values = {"answer": sealed, "counted_bytes": counted}
            await session.execute(update(PromptSample).where(PromptSample.event_id == event_id).values(values))


async def list_samples(
    store: Store, organization_id: str, *, review: str | None, model: str | None, after: int | None, limit: int
) -> list[PromptSample]:
    """Samples of an organisation, newest first, of those older than the sample `after`."""
    query = _of(organization_id, review).where(*given_values((PromptSample.model, model)))
    if after is not None:
        query = query.where(PromptSample.id < after)
    contents = defer(PromptSample.sealed), defer(PromptSample.answer)
    async with store.reading() as session:
        return list(await session.scalars(query.order_by(PromptSample.id.desc()).limit(limit).options(*contents)))


async def count_unreviewed(store: Store, organization_id: str) -> int:
    query = _of(organization_id, UNREVIEWED).with_only_columns(func.count())
    async with store.reporting() as session:
        return await session.scalar(query) or 0


async def find_sample(session: AsyncSession, organization_id: str, sample_id: int) -> PromptSample:
    query = _of(organization_id, None).where(PromptSample.id == sample_id)
    return await find_one(session, query, f"There is no sampled prompt {sample_id}.")


def _of(organization_id: str, review: str | None) -> Select[PromptSample]:
    theirs = PromptSample.organization_id == organization_id
    return select(PromptSample).where(theirs, *given_values((PromptSample.review, review)))


async def sample_of(session: AsyncSession, owner: Owner, request: str) -> PromptSample | None:
    """The prompt of a request, by the id that the gateway made for it: of its latest turn. None: it is not kept."""
    query = select(PromptSample).where(
        PromptSample.organization_id == owner.organization_id,
        PromptSample.project_id == owner.project_id,
        PromptSample.event_id.in_(event_ids(request)),
    )
    return await session.scalar(query.order_by(PromptSample.id.desc()).limit(1))


async def latest_samples(
    store: Store, limit: int, *, project_id: str | None = None, request_id: str | None = None
) -> list[PromptSample]:
    wanted = given_values((PromptSample.project_id, project_id), (PromptSample.request_id, request_id))
    query = select(PromptSample).where(*wanted).order_by(PromptSample.id.desc()).limit(limit)
    async with store.reading() as session:
        return list((await session.scalars(query)).all())
