"""Chunks of the files in vector stores: what searches find."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, ExactJson, Id, Number, Sequence


class ChunkStore(Base):
    """The chunks of a vector store together. It comes with the store's first file."""

    __tablename__ = "chunk_stores"
    __table_args__ = (Index("ix_chunk_stores_organization_id", "organization_id"),)

    store_id: Mapped[Id] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"))
    project_id: Mapped[Id] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    revision: Mapped[Number]
    """Grows with each change: an index of another revision is out of date."""
    embedder: Mapped[str] = mapped_column(String(256), default="")
    """Identity of the embedder whose vectors are searched; empty: there are none yet."""


class ChunkFile(Base):
    """A file of a vector store, as far as searches need to know it."""

    __tablename__ = "chunk_files"

    store_id: Mapped[Id] = mapped_column(ForeignKey("chunk_stores.store_id", ondelete="CASCADE"), primary_key=True)
    file_id: Mapped[Id] = mapped_column(primary_key=True)
    filename: Mapped[str] = mapped_column(String(512))
    attributes: Mapped[dict[str, Any]] = mapped_column(ExactJson)
    readers: Mapped[list[Any] | None] = mapped_column(ExactJson)
    """Ids of users and `role:…` who may read it; None: all of the project."""
    version: Mapped[str] = mapped_column(String(128), default="")
    """Version of its content and of how it was cut; empty: it has no chunks yet."""
    embedder: Mapped[str] = mapped_column(String(256), default="")
    """Identity of the embedder whose vectors came last."""
    revision: Mapped[Number] = mapped_column(default=0)
    """The store's when its chunks, or the vectors that are searched, changed last."""
    generation: Mapped[Number] = mapped_column(default=0)
    """Generation of the chunks which are its own: others are being written, or deleted."""
    chunks: Mapped[Number] = mapped_column(default=0)


class StoredChunk(Base):
    """A passage of a file. Without its file, or of an earlier generation of it, it is gone, and will be deleted: what
    is large is written, and deleted, in steps."""

    __tablename__ = "chunks"
    __table_args__ = (
        Index("ix_chunks_store_id_file_id_generation_ordinal", "store_id", "file_id", "generation", "ordinal"),
    )

    id: Mapped[Sequence] = mapped_column(primary_key=True)
    store_id: Mapped[Id]
    file_id: Mapped[Id]
    generation: Mapped[Number]
    ordinal: Mapped[Number]
    start: Mapped[Number]
    end: Mapped[Number]
    tokens: Mapped[Number]
    section: Mapped[bytes] = mapped_column(LargeBinary)
    page: Mapped[Number | None]
    text: Mapped[bytes] = mapped_column(LargeBinary)
    """UTF-8: documents may hold characters that PostgreSQL's texts may not."""
    words: Mapped[bytes] = mapped_column(LargeBinary)
    """Its words and their counts (`retrieval/index/words.py`)."""


class ChunkVector(Base):
    """A chunk's vector by one embedder. While another embedder takes over there are two."""

    __tablename__ = "chunk_vectors"

    chunk_id: Mapped[Number] = mapped_column(ForeignKey("chunks.id", ondelete="CASCADE"), primary_key=True)
    embedder: Mapped[str] = mapped_column(String(256), primary_key=True)
    vector: Mapped[bytes] = mapped_column(LargeBinary)
    """float16, little-endian, of length 1."""
