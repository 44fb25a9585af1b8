"""Prompts that projects allowed to be kept: sealed before they come here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select

from kvarn.store.engine import Store
from kvarn.store.models import PromptSample
from kvarn.store.owner import Owner


@dataclass(frozen=True, slots=True)
class NewSample:
    """A sealed prompt and whose it is."""

    owner: Owner
    request_id: str
    model: str
    created_at: int
    sealed: bytes


async def add_samples(store: Store, samples: Sequence[NewSample]) -> None:
    """Keep sealed prompts."""
    rows = [
        {
            "organization_id": sample.owner.organization_id,
            "project_id": sample.owner.project_id,
            "request_id": sample.request_id,
            "model": sample.model,
            "created_at": sample.created_at,
            "sealed": sample.sealed,
        }
        for sample in samples
    ]
    async with store.transaction() as session:
        await session.execute(insert(PromptSample), rows)


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
