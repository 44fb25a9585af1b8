"""Servers whose tools the models of a project may use."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import Double, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, ExactJson, Id, Number, Seconds


class StoredToolServer(Base):
    """A server that a project's administrators registered, and the tools of it that they approved."""

    __tablename__ = "tool_servers"
    __table_args__ = (UniqueConstraint("project_id", "name"),)

    noun: ClassVar[str] = "tool server"

    id: Mapped[Id] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"), index=True)
    project_id: Mapped[Id] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(64))
    """Name that requests give as `server_label`."""
    kind: Mapped[str] = mapped_column(String(16))
    """`mcp`, `http` or `web_search`."""
    url: Mapped[str | None] = mapped_column(String(2048))
    description: Mapped[str] = mapped_column(String(1024))
    document: Mapped[dict[str, Any] | None] = mapped_column(ExactJson)
    """OpenAPI document, as it was approved."""
    sealed_headers: Mapped[bytes | None] = mapped_column(LargeBinary)
    """JSON of the headers of each request, under the server's key (Fernet)."""
    header_names: Mapped[list[Any]]
    allowed_tools: Mapped[list[Any] | None]
    require_approval: Mapped[str | None] = mapped_column(String(16))
    timeout_s: Mapped[float] = mapped_column(Double)
    pinned: Mapped[dict[str, Any]]
    """Digests of the tools that were approved, by name."""
    approved: Mapped[dict[str, Any] | None] = mapped_column(ExactJson)
    """The approved tools as their server told them, by name; None: they were approved before this was kept."""
    refused: Mapped[dict[str, Any] | None] = mapped_column(ExactJson)
    """Digests of tools that were refused, by name: as they are told now they wait no more."""
    waiting: Mapped[dict[str, Any]]
    """Tools that were told since and wait for approval: `changed` or `new`, by name."""
    version: Mapped[Number]
    """Counts changes."""
    created_at: Mapped[Seconds]
    changed_at: Mapped[Seconds]
