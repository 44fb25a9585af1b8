"""Deleting what has been kept for long enough. What goes when says `policy.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlalchemy import and_, func, select

from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.models import Batch, BatchLine, Organization
from kvarn.store.repositories.batches.batches import OVER
from kvarn.store.repositories.batches.lines import delete_lines
from kvarn.store.repositories.retention.policy import STORED, StoredKind
from kvarn.store.repositories.retention.row_deletion import RowSelection, delete_rows

_DAY_S = 24 * 3600
_AT_ONCE = 25
"""Objects deleted in one transaction, with what belongs to them."""


@dataclass(slots=True)
class SweepResult:
    """What came of a sweep, by kind."""

    deleted: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Exception] = field(default_factory=dict)
    """Why a kind was left before its end. The others were swept all the same."""


async def delete_expired(store: Store, config: RetentionConfig) -> SweepResult:
    """Delete what has passed its days: the server's, or fewer where the organisation wants that. Files go at their own
    expiry, too. A kind that fails fails alone."""
    chores: dict[str, Callable[[], Awaitable[int]]] = {
        kind.name: partial(_delete_old, store, kind, config) for kind in STORED
    }
    chores["batch_lines"] = partial(_delete_left_lines, store)
    swept = SweepResult()
    for name, chore in chores.items():
        try:
            swept.deleted[name] = await chore()
        except Exception as error:
            swept.failures[name] = error
    return swept


async def _delete_old(store: Store, kind: StoredKind, config: RetentionConfig) -> int:
    now, total = int(store.now()), 0
    async for selection in _reasons(store, kind, config, now):
        if kind.may_go is not None and selection.still is not None:
            selection = replace(selection, still=and_(selection.still, kind.may_go(now)))
        total += await delete_rows(store, selection, at_once=_AT_ONCE, drop=kind.drop)
    return total


async def _reasons(
    store: Store, kind: StoredKind, config: RetentionConfig, now: int
) -> AsyncGenerator[RowSelection, None]:
    """Each reason is a query of its own, which an index answers: joined by OR they would read the whole table."""
    age, days = kind.column(kind.age), kind.days(config)
    expires_at = kind.column(kind.expires_at) if kind.expires_at else None
    if days is not None:
        old = age <= now - days * _DAY_S
        yield RowSelection(kind.model, kind.age, still=old if expires_at is None else and_(old, expires_at.is_(None)))
    if kind.expires_at and expires_at is not None:
        yield RowSelection(kind.model, kind.expires_at, still=expires_at <= now)
    wishes = select(Organization.id, Organization.retention_days).where(Organization.retention_days.is_not(None))
    async with store.reading() as session:
        wanted: list[Any] = list(await session.execute(wishes))
    for organization_id, wanted_days in wanted:
        theirs = kind.column("organization_id") == organization_id
        old = age <= now - wanted_days * _DAY_S
        yield RowSelection(kind.model, kind.age, whose=theirs, still=old)


async def _delete_left_lines(store: Store) -> int:
    """Lines of batches that are over, left by a gateway that died after its last step but one; of how many batches.

    Found from the lines' side: batches that are over are many, those that still have lines few.
    """
    last, total = "", 0
    while True:
        async with store.reading() as session:
            batch_id = await session.scalar(select(func.min(BatchLine.batch_id)).where(BatchLine.batch_id > last))
            if batch_id is None:
                return total
            status = await session.scalar(select(Batch.status).where(Batch.id == batch_id))
        if status in OVER:
            await delete_lines(store, batch_id)
            total += 1
        last = batch_id
