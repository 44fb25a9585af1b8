"""Vector stores, the files in them, and batches of files that were added together."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, CountedOwned, ExactJson, Id, Name, Number, Owned, Seconds


class VectorStore(CountedOwned, Base):
    """Files that are searched together. `counted_bytes` has those of its files' passages."""

    __tablename__ = "vector_stores"
    noun = "vector store"
    __table_args__ = (
        Index("ix_vector_stores_project_id_created_at", "project_id", "created_at"),
        Index("ix_vector_stores_organization_id_last_active_at", "organization_id", "last_active_at"),
        Index("ix_vector_stores_organization_id_counted_bytes", "organization_id", "counted_bytes"),
    )

    name: Mapped[Name]
    description: Mapped[str] = mapped_column(String(512), default="")
    extra: Mapped[dict[str, Any]] = mapped_column(ExactJson)
    created_at: Mapped[Seconds]
    last_active_at: Mapped[Seconds] = mapped_column(index=True)
    expires_after_days: Mapped[Number | None]
    """Days after its last use; None: it does not expire."""
    expires_at: Mapped[Seconds | None] = mapped_column(index=True)
    hidden: Mapped[bool] = mapped_column(default=False)
    """Whether it is being deleted: nobody finds it."""
    embedding_model: Mapped[Name | None]
    """Model that its client chose; None: the server's."""


class VectorStoreFile(Base):
    """A file in a vector store: the state of its ingestion, and what its client says of it."""

    __tablename__ = "vector_store_files"
    __table_args__ = (
        Index("ix_vector_store_files_store_id_created_at", "store_id", "created_at"),
        Index(
            "ix_vector_store_files_open",
            "created_at",
            postgresql_where=text("status = 'in_progress' OR stale"),
            sqlite_where=text("status = 'in_progress' OR stale"),
        ),
    )

    store_id: Mapped[Id] = mapped_column(ForeignKey("vector_stores.id", ondelete="CASCADE"), primary_key=True)
    file_id: Mapped[Id] = mapped_column(primary_key=True, index=True)
    """The file that was uploaded: deleted, or expired, it leaves the store."""
    batch_id: Mapped[Id | None] = mapped_column(index=True)
    filename: Mapped[str] = mapped_column(String(512))
    created_at: Mapped[Seconds]
    expires_at: Mapped[Seconds | None] = mapped_column(index=True)
    """Expiry of the file."""
    status: Mapped[str] = mapped_column(String(16))
    """`in_progress`, `completed`, `failed` or `cancelled`."""
    error_code: Mapped[str | None] = mapped_column(String(32))
    error_message: Mapped[str | None] = mapped_column(String(512))
    attributes: Mapped[dict[str, Any]] = mapped_column(ExactJson)
    readers: Mapped[list[Any] | None] = mapped_column(ExactJson)
    """User ids, or `role:` and a role, of those who find it; None: the whole project."""
    max_tokens: Mapped[Number]
    overlap_tokens: Mapped[Number]
    """Sizes of its passages."""
    usage_bytes: Mapped[Number] = mapped_column(default=0)
    """Bytes of its passages and their vectors."""
    version: Mapped[str] = mapped_column(String(64), default="")
    """Version of the passages that are searched; empty: there are none yet."""
    embedder: Mapped[Name] = mapped_column(default="")
    """Identity of the model that made their vectors; empty: they have none."""
    stale: Mapped[bool] = mapped_column(default=False)
    """Whether it waits for vectors of another embedder; until then it is found as it is."""
    quoted_at: Mapped[Seconds | None]
    """Time at which a passage of it went into a prompt last."""
    progress: Mapped[float] = mapped_column(default=0.0)
    """Part of the ingestion that is done, from 0 to 1."""
    attempts: Mapped[Number] = mapped_column(default=0)
    """Number of times that a gateway began its ingestion; those that were stopped in order do not count."""
    leased_by: Mapped[str | None] = mapped_column(String(64))
    leased_until: Mapped[Seconds | None]


class VectorStoreFileBatch(Owned, Base):
    """Files that were added to a vector store together."""

    __tablename__ = "vector_store_file_batches"
    noun = "vector store file batch"

    store_id: Mapped[Id] = mapped_column(ForeignKey("vector_stores.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[Seconds]
    cancelled: Mapped[bool] = mapped_column(default=False)
