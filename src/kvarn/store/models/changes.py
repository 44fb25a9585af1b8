"""Rows between processes: changes that others must hear of, leases of work that one does at a time."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, Id, Number, Seconds, Sequence


class Change(Base):
    """A change of an organisation, written in the change's own transaction (`repositories/changes.py`)."""

    __tablename__ = "changes"

    number: Mapped[Sequence] = mapped_column(primary_key=True)
    """Grows in the order of the commits."""
    organization_id: Mapped[Id]
    kind: Mapped[str] = mapped_column(String(16))
    """`keys`: its keys may grant something else; `deleted`: it is gone."""
    token: Mapped[str] = mapped_column(String(64))
    """Random: after a restore from a backup a number may come again, with another token."""
    changed_at: Mapped[Seconds]


class Lease(Base):
    """The holder of a piece of work, which no other process begins before the lease ends."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    until_ms: Mapped[Number]  # milliseconds since 1970
