"""Containers of the code interpreter."""

from __future__ import annotations

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, CountedOwned, Id, Name, Number, Seconds


class Container(CountedOwned, Base):
    """Files that code works with, and the interpreter that has worked with them last."""

    __tablename__ = "containers"
    noun = "container"
    __table_args__ = (
        Index("ix_containers_project_id_created_at", "project_id", "created_at"),
        Index("ix_containers_organization_id_created_at", "organization_id", "created_at"),
    )

    name: Mapped[Name]
    created_at: Mapped[Seconds]
    last_active_at: Mapped[Seconds]
    expires_at: Mapped[Seconds] = mapped_column(index=True)
    """Hidden from then on; the sweep deletes it, and its files."""
    idle_s: Mapped[Number]
    """Seconds after its last use after which it expires."""
    memory_mib: Mapped[Number]
    interpreter_id: Mapped[Id | None]
    """The live interpreter of one gateway process that has its variables; None: no code has been run."""
