"""Rollouts: a new version of a model on its way, with what was seen and decided."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, Name, Seconds, Sequence


class StoredRollout(Base):
    """The latest rollout of a model. The leader writes `state`; other gateway processes follow."""

    __tablename__ = "rollouts"

    model: Mapped[Name] = mapped_column(primary_key=True)
    state: Mapped[dict[str, Any]]
    command: Mapped[str | None]
    """An administrator's command that the leader has not carried out yet."""
    commanded_by: Mapped[Name | None]
    changed_at: Mapped[Seconds]
    candidate_version: Mapped[int | None]
    """The deployment's version that runs beside the one that serves. None: it needs no replicas any more."""
    candidate_share: Mapped[float | None] = mapped_column(Double)
    """Share of the requests for which that version shall have replicas."""


class RolloutSamples(Base):
    """Samples that a gateway process leaves for the leader, which counts and deletes them."""

    __tablename__ = "rollout_samples"

    id: Mapped[Sequence] = mapped_column(primary_key=True)
    model: Mapped[Name]
    began: Mapped[float] = mapped_column(Double)
    """Start of the rollout, Unix seconds: tells rollouts of a model apart."""
    samples: Mapped[list[Any]]
