"""Calls of tools that the platform runs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, ExactJson, Id, Name, Number, Owned, Seconds


class StoredToolCall(Owned, Base):
    """A call of a tool: written before it runs, so that one whose gateway dies is not run again, nor one whose
    approval is sent again."""

    __tablename__ = "tool_calls"
    noun = "tool call"
    __table_args__ = (
        UniqueConstraint("project_id", "approval_request_id"),
        Index("ix_tool_calls_organization_id_created_at", "organization_id", "created_at"),
        Index("ix_tool_calls_project_id_created_at", "project_id", "created_at"),
    )

    answer_id: Mapped[Id] = mapped_column(index=True)
    """Id of its request's record, or of the response in the background for which it runs."""
    request_id: Mapped[str] = mapped_column(String(128))
    approval_request_id: Mapped[Id | None]
    """The request for approval by which it runs: an approval lets one call run, once."""
    key_id: Mapped[Id | None]
    type: Mapped[str] = mapped_column(String(64))
    """Type of the tool in the request, such as `mcp`."""
    name: Mapped[Name]
    """The model's name of the tool."""
    arguments: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the arguments, hexadecimal."""
    status: Mapped[str] = mapped_column(String(16))
    """`started`, `completed`, `failed`, `incomplete` (it took too long), `cancelled`; `started` for good where its
    gateway died: it may have run."""
    created_at: Mapped[Seconds] = mapped_column(index=True)
    duration_ms: Mapped[Number | None]
    result_bytes: Mapped[Number | None]
    error: Mapped[str | None] = mapped_column(String(1024))
    result: Mapped[dict[str, Any] | None] = mapped_column(ExactJson)
    """The result, while its response in the background is being made: another gateway that takes it over uses it. Of an
    approved call it stays, unless its request is not stored: whoever approves the call again gets it."""
