"""Quality of answers: feedback of those who read them, evaluation sets with their versions, runs and results."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, CountedOwned, ExactJson, Id, Name, Number, Seconds


class Feedback(CountedOwned, Base):
    """An opinion on one answer; each author has one for each request, and may change it."""

    __tablename__ = "feedback"
    noun = "feedback"
    __table_args__ = (
        UniqueConstraint("project_id", "event_id", "author"),
        Index("ix_feedback_organization_id_created_at", "organization_id", "created_at"),
        Index("ix_feedback_organization_id_counted_bytes", "organization_id", "counted_bytes"),
    )

    created_at: Mapped[Seconds] = mapped_column(index=True)
    changed_at: Mapped[Seconds]
    event_id: Mapped[Id]
    """Usage event of the request."""
    request_id: Mapped[str] = mapped_column(String(128))
    author: Mapped[str] = mapped_column(String(128))
    """End user, as the client names them, else the user of the key; empty: the project."""
    given_by: Mapped[Id] = mapped_column(default="", server_default="")
    """User or key that gave it, and may change it; empty: the project's programs."""
    model: Mapped[Name]
    version: Mapped[Name]
    rating: Mapped[str | None] = mapped_column(String(8))
    """`up` or `down`."""
    score: Mapped[float | None]
    """From 0 to 1."""
    comment: Mapped[str | None]
    labels: Mapped[list[Any]]
    extra: Mapped[dict[str, Any]]


class EvaluationSet(CountedOwned, Base):
    """Questions with what is expected of their answers; every change makes a version."""

    __tablename__ = "evaluation_sets"
    noun = "evaluation set"
    __table_args__ = (
        UniqueConstraint("project_id", "name"),
        Index("ix_evaluation_sets_project_id_created_at", "project_id", "created_at"),
        Index("ix_evaluation_sets_organization_id_changed_at", "organization_id", "changed_at"),
        Index("ix_evaluation_sets_organization_id_counted_bytes", "organization_id", "counted_bytes"),
    )

    name: Mapped[str] = mapped_column(String(64))
    description: Mapped[str] = mapped_column(String(512), default="")
    created_at: Mapped[Seconds]
    changed_at: Mapped[Seconds] = mapped_column(index=True)
    version: Mapped[Number]
    """Newest version."""
    num_items: Mapped[Number]
    """Items of the newest version."""
    baseline_run_id: Mapped[Id | None]
    """Run that others are measured by; None: the one of the model's version before."""


class EvaluationSetVersion(Base):
    """The items of a set as they were from one change to the next."""

    __tablename__ = "evaluation_set_versions"

    set_id: Mapped[Id] = mapped_column(ForeignKey("evaluation_sets.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[Number] = mapped_column(primary_key=True)
    created_at: Mapped[Seconds]
    key_id: Mapped[Id | None]
    note: Mapped[str] = mapped_column(String(512))
    num_items: Mapped[Number]
    items: Mapped[list[Any]] = mapped_column(ExactJson)


class EvaluationRun(CountedOwned, Base):
    """One model's answers to one version of a set, graded."""

    __tablename__ = "evaluation_runs"
    noun = "evaluation run"
    __table_args__ = (
        Index("ix_evaluation_runs_set_id_created_at", "set_id", "created_at"),
        Index("ix_evaluation_runs_organization_id_created_at", "organization_id", "created_at"),
        Index("ix_evaluation_runs_organization_id_counted_bytes", "organization_id", "counted_bytes"),
    )

    set_id: Mapped[Id] = mapped_column(ForeignKey("evaluation_sets.id", ondelete="CASCADE"))
    set_name: Mapped[str] = mapped_column(String(64))
    set_version: Mapped[Number]
    key_id: Mapped[Id | None]
    """The key whose scopes and limits hold."""
    asked_model: Mapped[Name]
    model: Mapped[Name]
    """The one that answered, without its version; empty until then."""
    model_version: Mapped[Name]
    settings: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(String(16), index=True)
    created_at: Mapped[Seconds] = mapped_column(index=True)
    started_at: Mapped[Seconds | None]
    finished_at: Mapped[Seconds | None]
    total: Mapped[Number]
    answered: Mapped[Number] = mapped_column(default=0)
    """Items with a result, errors among them."""
    passed: Mapped[Number] = mapped_column(default=0)
    errors: Mapped[Number] = mapped_column(default=0)
    score: Mapped[float | None]
    """Mean over all items, from 0 to 1, once it is over."""
    problem: Mapped[str | None] = mapped_column(String(512))
    leased_by: Mapped[str | None] = mapped_column(String(64))
    leased_until: Mapped[Seconds | None]


class EvaluationResult(Base):
    """The answer to one item, and its grades."""

    __tablename__ = "evaluation_results"

    run_id: Mapped[Id] = mapped_column(ForeignKey("evaluation_runs.id", ondelete="CASCADE"), primary_key=True)
    item: Mapped[Number] = mapped_column(primary_key=True)
    """Place in the set's version, from 0."""
    score: Mapped[float]
    passed: Mapped[bool]
    output: Mapped[str]
    """Beginning of the answer."""
    grades: Mapped[list[Any]] = mapped_column(ExactJson)
    error: Mapped[str | None] = mapped_column(String(512))
    request_id: Mapped[str] = mapped_column(String(128))
    output_tokens: Mapped[Number]
