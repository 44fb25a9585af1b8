"""Files and batches."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, String, false, text
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, CountedOwned, ExactJson, Id, Name, Number, Owned, Seconds

PROCESSED, INCOMPLETE, PART, IN_CONTAINER = "processed", "incomplete", "part", "in_container"
"""The states of a file; a part of an upload that is whole is none that can be seen, and one of a container is seen in
that."""


class File(Owned, Base):
    """A file a client uploaded, or a batch wrote."""

    __tablename__ = "files"
    noun = "file"
    __table_args__ = (
        Index("ix_files_project_id_created_at", "project_id", "created_at"),
        Index("ix_files_organization_id_created_at", "organization_id", "created_at"),
    )

    filename: Mapped[str] = mapped_column(String(512))
    purpose: Mapped[str] = mapped_column(String(32))
    status: Mapped[str] = mapped_column(String(16), default="processed")
    """`processed`, or `incomplete` while it is written or deleted: then clients do not see it."""
    size: Mapped[Number]
    created_at: Mapped[Seconds] = mapped_column(index=True)
    expires_at: Mapped[Seconds | None] = mapped_column(index=True)
    """Hidden from then on; the sweep deletes it."""
    counted: Mapped[bool] = mapped_column(default=True)
    """Whether it counts in its organisation's `file_bytes`: what a batch writes does so once it is published."""
    in_blobs: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether its content lies at `store.blobs`; else in `file_chunks`."""
    upload_id: Mapped[Id | None] = mapped_column(index=True)
    """The upload whose part it is: clients do not see it, and it goes with that."""
    container_id: Mapped[Id | None] = mapped_column(index=True)
    """The container of the code interpreter in which it lies, `filename` is its path there and `purpose` who wrote it:
    `user` or `assistant`."""


class FileChunk(Base):
    """A part of a file whose content lies in the database."""

    __tablename__ = "file_chunks"

    file_id: Mapped[Id] = mapped_column(ForeignKey("files.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[Number] = mapped_column(primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class Upload(CountedOwned, Base):
    """A file that comes in parts. It goes at its expiry, whatever has become of it."""

    __tablename__ = "uploads"
    noun = "upload"
    __table_args__ = (Index("ix_uploads_organization_id_created_at", "organization_id", "created_at"),)

    filename: Mapped[str] = mapped_column(String(512))
    purpose: Mapped[str] = mapped_column(String(32))
    status: Mapped[str] = mapped_column(String(16))
    """`pending`, `completing`, `completed` or `cancelled`."""
    size: Mapped[Number]
    """Bytes that all parts have together in the end."""
    created_at: Mapped[Seconds] = mapped_column(index=True)
    expires_at: Mapped[Seconds] = mapped_column(index=True)
    file_expires_after_s: Mapped[Number | None]
    """Seconds that the file is kept; None: as long as the server keeps files."""


class Batch(CountedOwned, Base):
    """A file of requests, to be answered within a window."""

    __tablename__ = "batches"
    noun = "batch"
    __table_args__ = (
        Index("ix_batches_project_id_created_at", "project_id", "created_at"),
        Index("ix_batches_organization_id_created_at", "organization_id", "created_at"),
    )

    key_id: Mapped[Id | None]
    """The key whose scopes and limits hold."""
    endpoint: Mapped[str] = mapped_column(String(64))
    input_file_id: Mapped[Id]
    output_file_id: Mapped[Id | None]
    error_file_id: Mapped[Id | None]
    status: Mapped[str] = mapped_column(String(16), index=True)
    window_s: Mapped[Number]
    created_at: Mapped[Seconds] = mapped_column(index=True)
    expires_at: Mapped[Seconds]
    times: Mapped[dict[str, Any]]
    """Times at which states were reached: `in_progress_at`, `completed_at`, …"""
    errors: Mapped[list[Any]] = mapped_column(ExactJson)
    extra: Mapped[dict[str, Any]] = mapped_column(ExactJson)
    output_expires_after_s: Mapped[Number | None]  # seconds that its output and error files are kept
    model: Mapped[Name | None]
    """The one that all its lines ask for; None where they differ."""
    total: Mapped[Number] = mapped_column(default=0)
    completed: Mapped[Number] = mapped_column(default=0)
    failed: Mapped[Number] = mapped_column(default=0)
    input_tokens: Mapped[Number] = mapped_column(default=0)
    cached_tokens: Mapped[Number] = mapped_column(default=0)
    output_tokens: Mapped[Number] = mapped_column(default=0)
    leased_by: Mapped[str | None] = mapped_column(String(64))  # the gateway that works on it
    leased_until: Mapped[Seconds | None]


class BatchLine(Base):
    """One request of a batch, and its answer once there is one; deleted when the batch's files are written."""

    __tablename__ = "batch_lines"
    __table_args__ = (
        Index(
            "ix_batch_lines_open",
            "batch_id",
            "model",
            "line",
            postgresql_where=text("failed IS NULL"),
            sqlite_where=text("failed IS NULL"),
        ),
    )

    batch_id: Mapped[Id] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    line: Mapped[Number] = mapped_column(primary_key=True)
    custom_id: Mapped[str] = mapped_column(String(512))
    failed: Mapped[bool | None]
    """Which file its answer goes to; None while it is open."""
    model: Mapped[Name]
    """The one that is to answer it; empty where it names none that could be served."""
    body: Mapped[bytes] = mapped_column(LargeBinary)
    answer: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Its line of the output or error file: JSON."""
