"""Requests that are over: what they are found by, and beside it what is told of each."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, Id, Name, Number, Sequence

ByBytes = String(128).with_variant(String(128, collation="C"), "postgresql")
"""A text that is found by its beginning: compared byte by byte, as SQLite does it."""


_INDEXES = (
    ("started_us",),
    ("total_us",),
    ("organization_id", "started_us"),
    ("organization_id", "total_us"),
    ("organization_id", "kept_bytes"),
    ("organization_id", "reason", "started_us"),
    ("organization_id", "model", "started_us"),
    ("project_id", "started_us"),
    ("project_id", "total_us"),
    ("model", "started_us"),
    ("model", "total_us"),
    ("model", "input_tokens", "output_tokens"),
    ("key_id", "started_us"),
    ("session", "started_us"),
    ("end_user", "started_us"),
    ("reason", "started_us"),
    ("endpoint", "started_us"),
    ("model_version", "started_us"),
)
"""Each list is read in its order, by the column that selects the fewest rows."""


class KeptRequest(Base):
    """A request, as lists show it. Lists read it by an index in their own order: what is in `KeptDetail` would make
    the rows of a page lie far apart."""

    __tablename__ = "kept_requests"
    __table_args__ = tuple(Index(f"ix_kept_requests_{'_'.join(columns)}", *columns) for columns in _INDEXES)

    number: Mapped[Sequence] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(ByBytes, unique=True)
    """The record's: unique, in the ids of the answer and of its turns."""
    request_id: Mapped[str] = mapped_column(ByBytes, index=True)
    """The answer's `x-request-id`; perhaps the client's own, and not unique."""
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"))
    project_id: Mapped[Id] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    key_id: Mapped[Id | None]
    session: Mapped[Name | None]
    end_user: Mapped[Name | None]
    batch_id: Mapped[Id | None]
    model: Mapped[Name]
    model_version: Mapped[Name]
    adapter: Mapped[Name]
    replica: Mapped[Name]
    endpoint: Mapped[Name]
    status: Mapped[int]
    """HTTP status; 0: it was no HTTP request, or its client left before."""
    outcome: Mapped[str] = mapped_column(String(16))
    error_code: Mapped[str] = mapped_column(String(64))
    reason: Mapped[str] = mapped_column(String(16))
    """Why it is kept; see `KeptReason`."""
    cause: Mapped[str] = mapped_column(String(32), default="", server_default="")
    """Why it took as long as it did, a `CauseCode`; empty: it was kept before causes were."""
    cause_us: Mapped[Number] = mapped_column(default=0, server_default="0")
    started_us: Mapped[Number]
    """Microseconds since 1970."""
    total_us: Mapped[Number]
    ttft_us: Mapped[Number | None]
    input_tokens: Mapped[Number]
    cached_tokens: Mapped[Number]
    output_tokens: Mapped[Number]
    cost: Mapped[Number]
    """In billionths of the currency's unit."""
    kept_bytes: Mapped[Number]
    """Bytes that count against `traces.kept.max_bytes`."""


class KeptDetail(Base):
    """All else that is kept of a request."""

    __tablename__ = "kept_details"

    id: Mapped[str] = mapped_column(ByBytes, ForeignKey("kept_requests.id", ondelete="CASCADE"), primary_key=True)
    packed: Mapped[bytes] = mapped_column(LargeBinary)
    """See `kvarn.kept.packing`."""
