"""Leases: work that one process of a deployment does at a time."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, Number


class Lease(Base):
    """The holder of a piece of work, which nobody else begins before its end."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    until_ms: Mapped[Number]
