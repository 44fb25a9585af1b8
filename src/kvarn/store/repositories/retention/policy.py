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
from kvarn.store import models
from kvarn.store.repositories.batches.batches import OVER
from kvarn.store.repositories.conversations.background_responses import RUNNING
from kvarn.store.repositories.retention.row_deletion import (
    Condition,
    DeleteRows,
    delete_counted,
    drop_batches,
    drop_files,
)


def _not_held(now: int) -> Condition:
    """No response is being made in it."""
    return or_(models.Conversation.locked_until.is_(None), models.Conversation.locked_until <= now)


def _has_ended(_: int) -> Condition:
    return models.StoredResponse.status.not_in(RUNNING)


def _is_over(_: int) -> Condition:
    return models.Batch.status.in_(OVER)


@dataclass(frozen=True, slots=True)
class StoredKind:
    """A kind of objects that organisations store: they go at their age, and with their organisation."""

    model: type[models.Base]
    days: Callable[[RetentionConfig], int | None]
    """How long the server's configuration keeps them; None: for ever."""
    age: str = "created_at"
    """Column of the time from which on the days are counted."""
    expires_at: str | None = None
    """Column of the time at which an object goes that says so itself. The server's days are not for those."""
    may_go: Callable[[int], Condition] | None = None
    """Holds at this moment (seconds since 1970) for those that may go at their age at all."""
    drop: DeleteRows = delete_counted

    @property
    def name(self) -> str:
        """Of its table."""
        return str(self.model.__tablename__)

    def column(self, name: str) -> ColumnElement[int]:
        """A column of its table."""
        return self.model.__table__.c[name]


STORED: Final = (
    StoredKind(models.Conversation, lambda config: config.conversations_days, age="changed_at", may_go=_not_held),
    StoredKind(models.StoredResponse, lambda config: config.responses_days, may_go=_has_ended),
    StoredKind(models.StoredCompletion, lambda config: config.responses_days),
    StoredKind(models.Batch, lambda config: config.files_days, may_go=_is_over, drop=drop_batches),
    StoredKind(models.File, lambda config: config.files_days, expires_at="expires_at", drop=drop_files),
    StoredKind(models.PromptSample, lambda config: config.prompt_samples_days),
)
"""Go at their age, and with their organisation."""

OWNED: Final[tuple[type[models.Base], ...]] = (
    models.RateLimit,
    models.Budget,
    models.ApiKey,
    models.User,
    models.Project,
)
"""What else an organisation is made of: goes with it, in this order; its own row goes last."""

USAGE: Final[Mapping[type[models.Base], str]] = {
    models.UsageEvent: "finished_at",
    models.UsageHour: "hour_at",
    models.UsagePeriod: "period",
    models.BilledHour: "hour_at",
}
"""What it used, with the column of time: it says nothing of what was said, so an organisation's end leaves it for the
last invoice, unless it is asked to go too. An erasure deletes them in this order."""

PARTS: Final[Mapping[type[models.Base], type[models.Base]]] = {
    models.ConversationItem: models.Conversation,
    models.FileChunk: models.File,
    models.BatchLine: models.Batch,
    models.ProjectMember: models.Project,
    models.OutboxEntry: models.UsageEvent,
    models.BilledEvent: models.UsageEvent,
}
"""Go with the row that they belong to."""

KEPT: Final[Mapping[type[models.Base], str]] = {
    models.AuditEntry: "for the platform's administrators: a log that its subject can delete would be none",
    models.ErasedOrganization: "its id alone, so that no event that was still on its way brings erased usage back",
    models.Revision: "one number, of all organisations together",
    models.Lease: "of nobody: a row for each piece of work",
}
"""Go with nobody, and why."""
