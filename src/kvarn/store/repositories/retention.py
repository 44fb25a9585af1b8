"""Retention: one table of the kinds of stored objects, and one loop that deletes by it.

Everything else that names an organisation goes with its row, by foreign keys; its usage stays for the last invoice
(`organization_deletion.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import and_, or_, select, true, update

from kvarn.config.platform import RetentionConfig
from kvarn.store.engine import Store
from kvarn.store.models import (
    Base,
    Batch,
    Container,
    Conversation,
    EvaluationRun,
    EvaluationSet,
    Feedback,
    File,
    KeptRequest,
    Organization,
    PromptSample,
    StoredCompletion,
    StoredResponse,
    StoredToolCall,
    Upload,
    VectorStore,
    VectorStoreFile,
)
from kvarn.store.models.files import INCOMPLETE
from kvarn.store.repositories.batches.batches import OVER
from kvarn.store.repositories.batches.lines import delete_lines
from kvarn.store.repositories.conversations.background_responses import RUNNING
from kvarn.store.repositories.evaluations.runs import RUN_OVER
from kvarn.store.repositories.files import drop_file
from kvarn.store.repositories.row_deletion import Condition, DropRows, delete_rows, drop_plain
from kvarn.store.repositories.vector_stores.deletion import delete_chunks, drop_store, hide_stores, remove_files

_DAY_S = 24 * 3600
_AT_ONCE = 25
"""Objects deleted in one transaction, with what belongs to them: few, so that other writers do not wait for long."""


async def drop_files(store: Store, _: type[Base], condition: Condition) -> int:
    """Hide them first, so that half a file is never read; then their content goes, a part at a time. A file that fails
    does not keep the others; the first error is raised at the end."""
    async with store.transaction() as session:
        hidden = update(File).where(condition).values(status=INCOMPLETE, expires_at=0)
        found = list(await session.scalars(hidden.returning(File.id)))
        removed = await remove_files(session, VectorStoreFile.file_id.in_(found), int(store.now()))
    await delete_chunks(store, removed)
    failure: Exception | None = None
    for file_id in found:
        try:
            await drop_file(store, file_id)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return len(found)


async def drop_batches(store: Store, _: type[Base], condition: Condition) -> int:
    """Their lines first, a part at a time. Those that are over stay so: nothing is asked again."""
    async with store.reading() as session:
        found = list(await session.scalars(select(Batch.id).where(condition)))
    for batch_id in found:
        await delete_lines(store, batch_id)
        await drop_plain(store, Batch, Batch.id == batch_id)
    return len(found)


async def drop_containers(store: Store, _: type[Base], condition: Condition) -> int:
    """Their files first: the row is found again where that is interrupted."""
    async with store.reading() as session:
        found = list(await session.scalars(select(Container.id).where(condition)))
    for container_id in found:
        await drop_files(store, File, File.container_id == container_id)
        await drop_plain(store, Container, Container.id == container_id)
    return len(found)


async def drop_vector_stores(store: Store, _: type[Base], condition: Condition) -> int:
    """Hide them first, then what was read from their files goes, some files at a time."""
    async with store.transaction() as session:
        found = await hide_stores(session, condition, int(store.now()))
    for row in found:
        await drop_store(store, row)
    return len(found)


@dataclass(frozen=True, slots=True)
class StoredKind:
    """A kind of objects that organisations store: they go at their age, and with their organisation."""

    model: type[Base]
    days: Callable[[RetentionConfig], int | None]
    """Days that the server's configuration keeps them; None: for ever."""
    age: str = "created_at"
    """Column of the time from which on the days are counted."""
    per_second: int = 1
    """Units of that column in a second."""
    expires_at: str | None = None
    """Column of the time at which an object goes that says so itself. The server's days are not for those."""
    may_go: Callable[[int], Condition] = lambda _: true()
    """Holds at this moment (seconds since 1970) for those that may go at their age at all."""
    drop: DropRows = drop_plain

    @property
    def name(self) -> str:
        return str(self.model.__tablename__)


def _is_not_held(now: int) -> Condition:
    return or_(Conversation.locked_until.is_(None), Conversation.locked_until <= now)


STORED: Final = (
    StoredKind(Conversation, lambda config: config.conversations_days, age="changed_at", may_go=_is_not_held),
    StoredKind(
        StoredResponse, lambda config: config.responses_days, may_go=lambda _: StoredResponse.status.not_in(RUNNING)
    ),
    StoredKind(StoredToolCall, lambda config: config.responses_days),
    StoredKind(StoredCompletion, lambda config: config.responses_days),
    StoredKind(Batch, lambda config: config.files_days, may_go=lambda _: Batch.status.in_(OVER), drop=drop_batches),
    StoredKind(Container, lambda _: None, expires_at="expires_at", drop=drop_containers),
    StoredKind(File, lambda config: config.files_days, expires_at="expires_at", drop=drop_files),
    StoredKind(VectorStore, lambda _: None, age="last_active_at", expires_at="expires_at", drop=drop_vector_stores),
    StoredKind(Upload, lambda config: config.files_days, expires_at="expires_at"),
    StoredKind(PromptSample, lambda config: config.prompt_samples_days),
    StoredKind(Feedback, lambda config: config.feedback_days),
    StoredKind(EvaluationRun, lambda config: config.feedback_days, may_go=lambda _: EvaluationRun.status.in_(RUN_OVER)),
    StoredKind(EvaluationSet, lambda _: None, age="changed_at"),
    StoredKind(KeptRequest, lambda config: config.kept_requests_days, age="started_us", per_second=1_000_000),
)


@dataclass(slots=True)
class SweepResult:
    deleted: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Exception] = field(default_factory=dict)
    """Why a kind was left before its end. The others were swept all the same."""


async def delete_expired(store: Store, config: RetentionConfig) -> SweepResult:
    """Delete what has passed its days: the server's, or fewer where the organisation wants that. Files go at their own
    expiry, too. A kind that fails fails alone."""
    wishes = select(Organization.id, Organization.retention_days).where(Organization.retention_days.is_not(None))
    async with store.reading() as session:
        wanted_days: list[Any] = list(await session.execute(wishes))
    swept = SweepResult()
    for kind in STORED:
        now = int(store.now())
        for along, condition in _reasons(kind, config, wanted_days, now):
            both = and_(condition, kind.may_go(now))
            try:
                swept.deleted[kind.name] += await delete_rows(
                    store, kind.model, along, both, at_once=_AT_ONCE, drop=kind.drop
                )
            except Exception as error:
                swept.failures.setdefault(kind.name, error)
    return swept


def _reasons(
    kind: StoredKind, config: RetentionConfig, wanted_days: Sequence[tuple[str, int]], now: int
) -> Iterable[tuple[str, Condition]]:
    """Each reason is a query of its own, which an index answers: joined by OR they would read the whole table."""
    columns, days = kind.model.__table__.c, kind.days(config)
    age = columns[kind.age]
    if days is not None:
        old = age <= (now - days * _DAY_S) * kind.per_second
        yield kind.age, and_(old, columns[kind.expires_at].is_(None)) if kind.expires_at else old
    if kind.expires_at:
        yield kind.expires_at, columns[kind.expires_at] <= now
    for organization_id, wanted in wanted_days:
        yield (
            kind.age,
            and_(columns.organization_id == organization_id, age <= (now - wanted * _DAY_S) * kind.per_second),
        )
