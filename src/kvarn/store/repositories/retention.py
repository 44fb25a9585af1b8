"""Deleting what has been kept for long enough, and all that an organisation stored. In steps that each take a short
time, so that nobody who writes meanwhile waits for long.

The ledger is not touched: usage events and billing sums say what was used and never what was said, and an invoice may
be asked for after its customer has gone. Neither is the audit log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, cast, delete, exists, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute

from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.models import (
    Batch,
    BatchLine,
    Conversation,
    File,
    Organization,
    PromptSample,
    StoredCompletion,
    StoredResponse,
)
from kvarn.store.repositories.batch_lines import delete_lines
from kvarn.store.repositories.batches import OVER
from kvarn.store.repositories.files import INCOMPLETE, drop_file

_DAY_S = 24 * 3600
_AT_ONCE = 25
"""Objects deleted in one transaction, with what belongs to them."""
_UNFINISHED = ("queued", "in_progress")

Condition = ColumnElement[bool]


@dataclass(frozen=True)
class _Kind:
    """A kind of stored objects."""

    name: str
    table: Any
    age: InstrumentedAttribute[int]
    """From when on its days are counted."""
    days: Callable[[RetentionConfig], int | None]
    """What the server's configuration says; None: for ever."""
    may_go: Condition | None = None
    """Holds for those that may be deleted at all."""
    drop: Callable[[Store, list[Any], Condition], Awaitable[int]] | None = None
    """Deletes those of the given ids for which the condition still holds; how many. Default: one statement, and what
    belongs to them goes with them."""


async def delete_expired(store: Store, config: RetentionConfig) -> Counter[str]:
    """Delete what has passed its days: the server's, or fewer where the organisation wants that. Files go at their own
    expiry, too.

    Returns:
        How many objects of each kind were deleted.

    Raises:
        StoreAwayError: The database does not answer. What was deleted until then stays so.
    """
    now = int(store.now())
    deleted: Counter[str] = Counter()
    for kind in _KINDS:
        deleted[kind.name] = await _delete(store, kind, _expired(kind, config, now))
    await _delete_left_lines(store)
    return deleted


async def delete_organization_data(store: Store, organization_id: str) -> Counter[str]:
    """Delete all that an organisation stored: conversations, responses, completions, batches, files, prompt samples.

    Nothing new may come meanwhile: its keys have been taken away before. Interrupted, it may be called again.

    Returns:
        How many objects of each kind were deleted.

    Raises:
        StoreAwayError: The database does not answer. What was deleted until then stays so.
    """
    deleted: Counter[str] = Counter()
    for kind in _KINDS:
        deleted[kind.name] = await _delete(store, kind, kind.table.organization_id == organization_id)
    return deleted


async def _delete(store: Store, kind: _Kind, condition: Condition) -> int:
    key, total = kind.table.id, 0
    while True:
        async with store.reading() as session:
            ids = list(await session.scalars(select(key).where(condition).limit(_AT_ONCE)))
        if not ids:
            return total
        if kind.drop is not None:
            gone = await kind.drop(store, ids, condition)
        else:
            async with store.transaction() as session:
                # Asked again: one that was used a moment ago is not old any more.
                result = await session.execute(delete(kind.table).where(key.in_(ids), condition).returning(key))
                gone = len(result.all())
        total += gone


def _expired(kind: _Kind, config: RetentionConfig, now: int) -> Condition:
    table, days = kind.table, kind.days(config)
    wanted_s = cast(Organization.retention_days, BigInteger) * _DAY_S  # its own type has 32 bits only
    wanted = exists().where(
        Organization.id == table.organization_id,
        Organization.retention_days.is_not(None),
        kind.age + wanted_s <= now,
    )
    reasons: list[Condition] = [wanted]
    if days is not None:
        old = kind.age <= now - days * _DAY_S
        reasons.append(and_(old, File.expires_at.is_(None)) if table is File else old)
    if table is File:
        reasons.append(File.expires_at <= now)
    return or_(*reasons) if kind.may_go is None else and_(kind.may_go, or_(*reasons))


async def _drop_files(store: Store, ids: list[Any], condition: Condition) -> int:
    """Hide them first: nobody shall read half a file."""
    async with store.transaction() as session:
        hidden = update(File).where(File.id.in_(ids), condition).values(status=INCOMPLETE, expires_at=0)
        found = list(await session.scalars(hidden.returning(File.id)))
    for file_id in found:
        await drop_file(store, file_id)
    return len(found)


async def _drop_batches(store: Store, ids: list[Any], condition: Condition) -> int:
    for batch_id in ids:
        await delete_lines(store, batch_id)
        async with store.transaction() as session:
            await session.execute(delete(Batch).where(Batch.id == batch_id))
    return len(ids)


async def _delete_left_lines(store: Store) -> None:
    """Lines of batches that are over, left by a gateway that died after its last step but one."""
    async with store.reading() as session:
        has_lines = exists().where(BatchLine.batch_id == Batch.id)
        left = list(await session.scalars(select(Batch.id).where(Batch.status.in_(OVER), has_lines)))
    for batch_id in left:
        await delete_lines(store, batch_id)


_KINDS = (
    _Kind("conversations", Conversation, Conversation.changed_at, lambda config: config.conversations_days),
    _Kind(
        "responses",
        StoredResponse,
        StoredResponse.created_at,
        lambda config: config.responses_days,
        may_go=StoredResponse.status.not_in(_UNFINISHED),
    ),
    _Kind("stored_completions", StoredCompletion, StoredCompletion.created_at, lambda config: config.responses_days),
    _Kind(
        "batches",
        Batch,
        Batch.created_at,
        lambda config: config.files_days,
        may_go=Batch.status.in_(OVER),
        drop=_drop_batches,
    ),
    _Kind("files", File, File.created_at, lambda config: config.files_days, drop=_drop_files),
    _Kind("prompt_samples", PromptSample, PromptSample.created_at, lambda config: config.prompt_samples_days),
)
