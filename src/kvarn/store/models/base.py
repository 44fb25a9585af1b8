"""Columns that tables have in common. Times are whole seconds since 1970 (UTC) where the name ends in `_at`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from sqlalchemy import JSON, BigInteger, ForeignKey, Integer, MetaData, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Id = Annotated[str, mapped_column(String(64))]
Name = Annotated[str, mapped_column(String(256))]
Seconds = Annotated[int, mapped_column(BigInteger)]
Number = Annotated[int, mapped_column(BigInteger)]
Sequence = Annotated[int, mapped_column(BigInteger().with_variant(Integer, "sqlite"), autoincrement=True)]
"""A key that the database counts up."""

Json = JSON().with_variant(JSONB(), "postgresql")
ExactJson = JSON()
"""JSON as it was written: keys keep their order, and texts may hold U+0000, which PostgreSQL's JSONB refuses."""

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {dict[str, Any]: Json, list[Any]: Json}  # noqa: RUF012  SQLAlchemy's way


class Owned:
    """An object of a project, which no other project finds."""

    noun: ClassVar[str]
    """Name of the kind in messages."""

    id: Mapped[Id] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"))
    project_id: Mapped[Id] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))


class CountedOwned(Owned):
    """An object other than a file."""

    counted_bytes: Mapped[Number] = mapped_column(default=0)
    """Bytes that count for its organisation: its content and a flat rate."""
