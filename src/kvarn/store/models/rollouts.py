"""Rollouts: a new version of a model on its way, with what was seen and decided."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, Name, Seconds


class StoredRollout(Base):
    """The latest rollout of a model. One gateway process judges it and writes `state`; the others follow."""

    __tablename__ = "rollouts"

    model: Mapped[Name] = mapped_column(primary_key=True)
    """What clients ask for."""
    state: Mapped[dict[str, Any]]
    """The `Rollout`."""
    command: Mapped[str | None]
    """What an administrator asks of whoever judges it, and has not been done yet."""
    commanded_by: Mapped[Name | None]
    changed_at: Mapped[Seconds]
