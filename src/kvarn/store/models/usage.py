"""The ledger: usage events, the outbox that publishes them, budgets, and the billing tables a consumer builds."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, Id, Name, Number, Seconds, Sequence

NAMED = text("request_id <> 'req-' || substr(id, 5, 32)")
"""Holds for requests whose ids are not the gateway's own, which are made of the event's id."""


class UsageEvent(Base):
    """Usage of one request. Written once, never changed."""

    __tablename__ = "usage_events"
    __table_args__ = (
        Index("ix_usage_events_organization_id_at", "organization_id", "finished_at"),
        Index("ix_usage_events_finished_at", "finished_at"),
        Index("ix_usage_events_named", "request_id", postgresql_where=NAMED, sqlite_where=NAMED),
        Index(
            "ix_usage_events_batch_id",
            "batch_id",
            postgresql_where=text("batch_id IS NOT NULL"),
            sqlite_where=text("batch_id IS NOT NULL"),
        ),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    """Made when the request is taken, so that an event written twice counts once."""
    request_id: Mapped[str] = mapped_column(String(128))
    organization_id: Mapped[Id]
    project_id: Mapped[Id]
    user_id: Mapped[Id | None]
    key_id: Mapped[Id | None]
    endpoint: Mapped[Name]
    model: Mapped[Name]
    model_version: Mapped[Name] = mapped_column(default="")
    adapter: Mapped[Name] = mapped_column(default="")
    route: Mapped[Name] = mapped_column(default="", server_default="")
    """The name that was asked for, where it stands for several models; `model` is the one that answered."""
    replica: Mapped[Name] = mapped_column(default="")
    service_tier: Mapped[str] = mapped_column(String(16), default="default")
    batch_id: Mapped[Id | None]
    """The batch whose line it was. Stays when the batch is deleted."""
    cache: Mapped[str | None] = mapped_column(String(16))
    """Cache that had the answer: `exact` or `semantic`; None: a model wrote it."""
    outcome: Mapped[str] = mapped_column(String(16))
    """`finished`, `aborted` (the client left), `failed`, or `lost` (the gateway died; found at its next start)."""
    input_tokens: Mapped[Number]
    cached_tokens: Mapped[Number]
    output_tokens: Mapped[Number]
    started_at: Mapped[Seconds]
    finished_at: Mapped[Seconds]
    duration_ms: Mapped[Number]
    ttft_ms: Mapped[Number | None]
    cost: Mapped[Number]
    """In billionths of the currency's unit, at the price of its day."""
    currency: Mapped[str] = mapped_column(String(3))


class OutboxEntry(Base):
    """An event to be published; written in the event's own transaction, deleted when the broker has it."""

    __tablename__ = "usage_outbox"

    id: Mapped[Sequence] = mapped_column(primary_key=True)
    event_id: Mapped[Id] = mapped_column(ForeignKey("usage_events.id", ondelete="CASCADE"), unique=True)
    created_at: Mapped[Seconds]
    payload: Mapped[bytes] = mapped_column(LargeBinary)


class UsagePeriod(Base):
    """Sums of a day, of a month and of all time by project, kept in the events' own transaction: what budgets are
    compared with."""

    __tablename__ = "usage_periods"

    organization_id: Mapped[Id] = mapped_column(primary_key=True)
    period: Mapped[str] = mapped_column(String(16), primary_key=True)
    """Such as `2026-11-21`, `2026-11` (UTC) or `total`."""
    project_id: Mapped[Id] = mapped_column(primary_key=True)
    currency: Mapped[str] = mapped_column(String(3), primary_key=True)
    tokens: Mapped[Number]
    cost: Mapped[Number]


class UsageHour(Base):
    """Sums of the events that ended in an hour, by all that reports tell apart except the batch (an hour may have as
    many batches as events), kept in the events' own transaction: what reports are made of."""

    __tablename__ = "usage_hours"
    __table_args__ = (Index("ix_usage_hours_hour_at", "hour_at"),)

    organization_id: Mapped[Id] = mapped_column(primary_key=True)
    hour_at: Mapped[Seconds] = mapped_column(primary_key=True)
    project_id: Mapped[Id] = mapped_column(primary_key=True)
    user_id: Mapped[Id] = mapped_column(primary_key=True)  # empty for requests without a user
    key_id: Mapped[Id] = mapped_column(primary_key=True)  # empty for requests without a key
    endpoint: Mapped[Name] = mapped_column(primary_key=True)
    model: Mapped[Name] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(String(16), primary_key=True)
    outcome: Mapped[str] = mapped_column(String(16), primary_key=True)
    currency: Mapped[str] = mapped_column(String(3), primary_key=True)
    requests: Mapped[Number]
    input_tokens: Mapped[Number]
    cached_tokens: Mapped[Number]
    output_tokens: Mapped[Number]
    cost: Mapped[Number]


class Budget(Base):
    """Money or tokens an organisation or a project may spend in a period."""

    __tablename__ = "budgets"

    id: Mapped[Id] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"), index=True)
    holder_id: Mapped[Id] = mapped_column(index=True)  # the organisation, or one of its projects
    created_at: Mapped[Seconds]
    unit: Mapped[str] = mapped_column(String(16))
    """`cost` (billionths of the currency's unit) or `tokens`."""
    currency: Mapped[str | None] = mapped_column(String(3))
    """Currency of a budget of money: `metering.currency` when it was made."""
    period: Mapped[str] = mapped_column(String(16))
    """`day`, `month` (UTC) or `total`."""
    hard_limit: Mapped[Number | None]
    """Requests are refused from here on."""
    soft_limit: Mapped[Number | None]
    """An alert is given once in a period."""
    alerted_period: Mapped[str | None] = mapped_column(String(16))
    """The period for which the alert has been given, such as `2026-11`."""

    @property
    def project_id(self) -> str | None:
        """The project that it is for; None: the organisation."""
        return None if self.holder_id == self.organization_id else self.holder_id

    def amount(self, tokens: int, cost: int) -> int:
        return tokens if self.unit == "tokens" else cost


class BilledEvent(Base):
    """An event that the consumer has counted: a repeat is dropped."""

    __tablename__ = "billed_events"

    event_id: Mapped[Id] = mapped_column(primary_key=True)
    billed_at: Mapped[Seconds]


class BilledHour(Base):
    """Sums of an hour, by project, key and model: what an invoice is made of."""

    __tablename__ = "billed_hours"
    __table_args__ = (Index("ix_billed_hours_organization_id_hour", "organization_id", "hour_at"),)

    hour_at: Mapped[Seconds] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(primary_key=True)
    project_id: Mapped[Id] = mapped_column(primary_key=True)
    key_id: Mapped[Id] = mapped_column(primary_key=True)  # empty for requests without a key
    model: Mapped[Name] = mapped_column(primary_key=True)
    currency: Mapped[str] = mapped_column(String(3), primary_key=True)
    requests: Mapped[Number]
    input_tokens: Mapped[Number]
    cached_tokens: Mapped[Number]
    output_tokens: Mapped[Number]
    cost: Mapped[Number]


class ErasedOrganization(Base):
    """An organisation whose usage has been erased: the sweep deletes what comes later, from a spool or from Kafka."""

    __tablename__ = "erased_organizations"

    id: Mapped[Id] = mapped_column(primary_key=True)
    erased_at: Mapped[Seconds]
