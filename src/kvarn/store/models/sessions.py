"""Browsers that are signed in to the console."""

from __future__ import annotations

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, Id, Seconds


class ConsoleSession(Base):
    """A session. It goes with its key, its user or its organisation; what it may do is read from these each time."""

    __tablename__ = "console_sessions"

    lookup: Mapped[str] = mapped_column(String(32), primary_key=True)
    """First part of the token, not secret: finds the row."""
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the token; for a key of the configuration, of the token and that key's digest: the session ends when
    the key is taken out."""
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"), index=True)
    key_id: Mapped[Id | None] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    """The key that it was begun with; None: a person, or a key of the configuration."""
    user_id: Mapped[Id | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    """The person whom a provider named; None: a key."""
    created_at: Mapped[Seconds]
    expires_at: Mapped[Seconds] = mapped_column(index=True)
