"""Organisations (the tenants), their projects, users, keys and limits, and what administrators did."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column, relationship

from kvarn.store.models.base import Base, Id, Name, Number, Seconds, Sequence


class Organization(Base):
    """A tenant: no other tenant sees what it owns."""

    __tablename__ = "organizations"

    id: Mapped[Id] = mapped_column(primary_key=True)
    name: Mapped[Name]
    created_at: Mapped[Seconds]
    archived_at: Mapped[Seconds | None]
    weight: Mapped[float] = mapped_column(default=1.0)
    """Share of a saturated engine."""
    priority: Mapped[int] = mapped_column(default=0)
    """Best tier its requests may have; lower runs first."""
    cache_salt: Mapped[str] = mapped_column(String(64))  # secret under which its prompts are cached
    retention_days: Mapped[int | None]
    """Days that conversations, responses, files and requests are kept; None: the server's setting."""
    file_bytes: Mapped[Number] = mapped_column(default=0, server_default="0")
    """Bytes of its files (`repositories/stored_bytes.py`)."""
    other_bytes: Mapped[Number] = mapped_column(default=0, server_default="0")
    """Bytes of all else that it stores, as summed last."""
    summed_at: Mapped[Number] = mapped_column(default=0, server_default="0")
    """Time of that sum, in milliseconds since 1970."""

    @hybrid_property
    def stored_bytes(self) -> int:
        return self.file_bytes + self.other_bytes


class Project(Base):
    """Part of an organisation; owns keys and stored objects."""

    __tablename__ = "projects"

    id: Mapped[Id] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"), index=True)
    name: Mapped[Name]
    created_at: Mapped[Seconds]
    archived_at: Mapped[Seconds | None]
    is_default: Mapped[bool] = mapped_column(default=False)
    """Whether the organisation was made with it: administrators' keys belong to it, so it is never archived."""
    log_prompts: Mapped[bool] = mapped_column(default=False)
    """Whether its prompts may be sampled and kept, encrypted."""
    cache_generation: Mapped[Number | None]
    """Number of times that its cached prompts were given up: they quoted what was deleted. None: never."""
    tools: Mapped[list[Any] | None]
    """Tools that it may use, such as `file_search` or `mcp:github`; None: all."""
    response_cache: Mapped[str | None] = mapped_column(String(16))
    """`off`, `exact` or `semantic`; None: the server's setting."""


class User(Base):
    __tablename__ = "users"
    __table_args__ = (UniqueConstraint("organization_id", "email"),)

    id: Mapped[Id] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(16), default="person")
    """`person` or `service_account`."""
    name: Mapped[Name]
    email: Mapped[str | None] = mapped_column(String(320))
    role: Mapped[str] = mapped_column(String(16))
    """In the organisation: `admin` or `member`."""
    created_at: Mapped[Seconds]


class ProjectMember(Base):
    __tablename__ = "project_members"

    project_id: Mapped[Id] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[Id] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(String(16))
    """`owner` or `member`."""
    created_at: Mapped[Seconds]
    user: Mapped[User] = relationship(lazy="joined", innerjoin=True)


class ApiKey(Base):
    """A key; of its secret only the hash is known."""

    __tablename__ = "api_keys"

    id: Mapped[Id] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"), index=True)
    project_id: Mapped[Id] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[Id | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    name: Mapped[Name]
    lookup: Mapped[str] = mapped_column(String(32), unique=True)
    """First part of the key, not secret: finds the row."""
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the whole key, hexadecimal. The key has 256 random bits: no slow hash is needed."""
    redacted: Mapped[str] = mapped_column(String(32))
    role: Mapped[str] = mapped_column(String(16))
    scopes: Mapped[dict[str, Any]]
    """`models`, `endpoints`, `adapters`, `tools`: lists; one that is missing restricts nothing."""
    created_at: Mapped[Seconds]
    expires_at: Mapped[Seconds | None]
    revoked_at: Mapped[Seconds | None]
    last_used_at: Mapped[Seconds | None]
    user: Mapped[User | None] = relationship(lazy="joined")
    """Its owner; None: the project, or of an administrator's key the organisation."""


class RateLimit(Base):
    """Limits of an organisation, a project or a key for one model or for each (`*`)."""

    __tablename__ = "rate_limits"
    __table_args__ = (UniqueConstraint("holder_id", "model"),)

    id: Mapped[Id] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"), index=True)
    holder_id: Mapped[Id]  # id of the organisation, project or key
    model: Mapped[Name]
    requests_per_minute: Mapped[Number | None]
    tokens_per_minute: Mapped[Number | None]
    concurrency: Mapped[Number | None]


class AuditEntry(Base):
    """An audited change: written in the change's own transaction, never changed, and never deleted: not even with its
    organisation."""

    __tablename__ = "audit_log"
    __table_args__ = (Index("ix_audit_log_organization_id_at", "organization_id", "effective_at"),)

    id: Mapped[Id] = mapped_column(primary_key=True)
    organization_id: Mapped[Id]
    effective_at: Mapped[Seconds]
    type: Mapped[str] = mapped_column(String(64))
    actor_key_id: Mapped[Id | None]
    """None: the command line on the server's machine, an open server, or a person who is signed in to the console."""
    actor: Mapped[Name]
    actor_organization_id: Mapped[Id | None]
    """Organisation of the actor; the log does not name another's administrator. None: the server itself."""
    actor_user_id: Mapped[Id | None]
    """Owner of the key. No reference: the entry outlives the user."""
    actor_email: Mapped[str | None] = mapped_column(String(320))
    """Address of the user; None for a service account."""
    object_id: Mapped[Id]
    project_id: Mapped[Id | None]
    detail: Mapped[dict[str, Any]]
    in_project: Mapped[Project | None] = relationship(
        primaryjoin="foreign(AuditEntry.project_id) == Project.id", lazy="joined", viewonly=True
    )
    """The project as it is today; None: it is gone."""

    @property
    def names_actor(self) -> bool:
        """Whether those who read the log may know who acted: not where it was another organisation's administrator,
        the platform's."""
        return self.actor_organization_id in (None, self.organization_id)


class PromptSample(Base):
    """A prompt that a project allowed to be kept; encrypted."""

    __tablename__ = "prompt_samples"
    __table_args__ = (
        Index("ix_prompt_samples_organization_id_created_at", "organization_id", "created_at"),
        Index("ix_prompt_samples_organization_id_counted_bytes", "organization_id", "counted_bytes"),
    )

    id: Mapped[Sequence] = mapped_column(primary_key=True)
    organization_id: Mapped[Id] = mapped_column(ForeignKey("organizations.id", ondelete="CASCADE"))
    project_id: Mapped[Id] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    request_id: Mapped[str] = mapped_column(String(128))
    model: Mapped[Name]
    created_at: Mapped[Seconds] = mapped_column(index=True)
    sealed: Mapped[bytes]
    """JSON of the request's input, under the server's key (Fernet)."""
    event_id: Mapped[Id | None] = mapped_column(index=True)
    """Usage event of the request."""
    answer: Mapped[bytes | None]
    """Text of the answer, sealed alike; None: there was none, or it is not known yet."""
    review: Mapped[str] = mapped_column(String(16), default="unreviewed", server_default="unreviewed")
    """`unreviewed`, `good` or `bad`."""
    note: Mapped[str | None] = mapped_column(String(1024))
    reviewed_by: Mapped[Name | None]
    reviewed_at: Mapped[Seconds | None]
    counted_bytes: Mapped[Number] = mapped_column(default=0)
