"""What becomes of each table: which rows go at their age, which with their organisation, which stay, and why.

Every table but `organizations` itself stands in exactly one of the lists below; a test holds that. The sweep and the
deletion of an organisation both go by them. What is stored counts in its organisation's account (`stored_bytes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, or_

from kvarn.config.platform import RetentionConfig
from kvarn.store.models import (
    ApiKey,
    AuditEntry,
    Base,
    Batch,
    BatchLine,
    BilledEvent,
    BilledHour,
    Budget,
    ChangeNumber,
    Conversation,
    ConversationItem,
    ErasedOrganization,
    File,
    FileChunk,
    Lease,
    Organization,
    OutboxEntry,
    Project,
    ProjectMember,
    PromptSample,
    RateLimit,
    Revision,
    StoredBytes,
    StoredCompletion,
    StoredResponse,
    UsageEvent,
    UsageHour,
    UsagePeriod,
    User,
)
from kvarn.store.repositories.batches.batches import OVER
from kvarn.store.repositories.retention.row_deletion import Condition, Drop, drop_batches, drop_counted, drop_files

_UNFINISHED = ("queued", "in_progress")


def _not_held(now: int) -> Condition:
    """No response is being made in it."""
    return or_(Conversation.locked_until.is_(None), Conversation.locked_until <= now)


@dataclass(frozen=True, slots=True)
class Stored:
    """A kind of objects that organisations store: they go at their age, and with their organisation."""

    model: type[Base]
    days: Callable[[RetentionConfig], int | None]
    """How long the server's configuration keeps them; None: for ever."""
    age: str = "created_at"
    """Column of the time from which on the days are counted."""
    expires_at: str | None = None
    """Column of the time at which an object goes that says so itself. The server's days are not for those."""
    may_go: Callable[[int], Condition] | None = None
    """Holds at this moment (seconds since 1970) for those that may go at their age at all."""
    drop: Drop = drop_counted

    @property
    def name(self) -> str:
        """Of its table."""
        return str(self.model.__tablename__)

    def column(self, name: str) -> ColumnElement[int]:
        """A column of its table."""
        return self.model.__table__.c[name]


STORED: Final = (
    Stored(Conversation, lambda config: config.conversations_days, age="changed_at", may_go=_not_held),
    Stored(
        StoredResponse, lambda config: config.responses_days, may_go=lambda _: StoredResponse.status.not_in(_UNFINISHED)
    ),
    Stored(StoredCompletion, lambda config: config.responses_days),
    Stored(Batch, lambda config: config.files_days, may_go=lambda _: Batch.status.in_(OVER), drop=drop_batches),
    Stored(File, lambda config: config.files_days, expires_at="expires_at", drop=drop_files),
    Stored(PromptSample, lambda config: config.prompt_samples_days),
)
"""Go at their age, and with their organisation."""

OWNED: Final[tuple[type[Base], ...]] = (RateLimit, Budget, ApiKey, User, Project)
"""What else an organisation is made of: goes with it, in this order; its own row goes last."""

USAGE: Final[Mapping[type[Base], str]] = {
    UsageEvent: "finished_at",
    UsageHour: "hour_at",
    UsagePeriod: "period",
    BilledHour: "hour_at",
}
"""What it used, with the column of time: it says nothing of what was said, so an organisation's end leaves it for the
last invoice, unless it is asked to go too. An erasure deletes them in this order."""

PARTS: Final[Mapping[type[Base], type[Base]]] = {
    ConversationItem: Conversation,
    FileChunk: File,
    BatchLine: Batch,
    StoredBytes: Organization,
    ProjectMember: Project,
    OutboxEntry: UsageEvent,
    BilledEvent: UsageEvent,
}
"""Go with the row that they belong to."""

KEPT: Final[Mapping[type[Base], str]] = {
    AuditEntry: "for the platform's administrators: a log that its subject can delete would be none",
    ErasedOrganization: "its id alone, so that no event that was still on its way brings erased usage back",
    Revision: "a number, so that a gateway that looks after an organisation's end learns of it",
    ChangeNumber: "numbers of acts, which name nobody; the oldest go when new ones come",
    Lease: "of nobody: a row for each piece of work",
}
"""Go with nobody, and why."""
